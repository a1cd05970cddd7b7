"""The state that the files of a publication are, put together without its readers."""

import numpy as np

from ctr_trainer.embedding.snapshot import packed_rows
from ctr_trainer.embedding.snapshot.packed_rows import unpack
from ctr_trainer.live.publication import records


def apply(directory, files, configs, dtype, rows, base=False):
    """Applies the files of an epoch to a state.

    Args:
      directory: that the files' names are relative to.
      files: dicts of `file`, `table`, `kind`.
      configs: by table, its TableConfig.
      dtype: of the rows.
      rows: by table, a dict of key -> weights as a list: the state before, which becomes the one after.
      base: whether the files are a whole state.
    """
    for table in configs:
        rows[table] = {} if base else rows.get(table, {})
    seen = set()
    for entry in files:
        table, config = entry["table"], configs[entry["table"]]
        path = directory / entry["file"]
        if entry["kind"] == "removed":
            keys = [key for block in packed_rows.read_removed(path, config, dtype) for key in block.tolist()]
            for key in keys:
                rows[table].pop(key, None)
        else:
            keys = []
            for some, values in packed_rows.read_rows(path, config, dtype):
                weights, _ = unpack(values, config, dtype)
                rows[table] |= dict(zip(some.tolist(), weights.tolist(), strict=True))
                keys += some.tolist()
        assert len(keys) == entry["rows"] and not seen & {(table, key) for key in keys}, entry
        seen |= {(table, key) for key in keys}


def state(url):
    """Checks all files. Returns {table: {key: weights}}, the newest record, and the number of applied epochs."""
    generation, names = records.find_current(url)
    base, rows, record = records.newest_base(names), {}, None
    epochs = [("base", base), *(name for name in names if name[0] == "epoch" and name[1] > base)]
    assert [epoch for _, epoch in epochs] == list(range(base, base + len(epochs)))
    for kind, epoch in epochs:
        record = records.read_record(url, generation, kind, epoch)
        records.check_files(url, record)
        directory = records.generation_path(url, generation)
        apply(directory, record.files, record.configs(), record.dtype, rows, kind == "base")
    return rows, record, len(epochs) - 1


def weights_of(blocks):
    """Returns {table: {key: weights}} of the blocks that `snapshot.iterate` yields."""
    found = {}
    for config, keys, rows in blocks:
        own = np.asarray(rows)[:, : config.weights].tolist()
        found.setdefault(config.name, {}).update(zip(keys.tolist(), own, strict=True))
    return found
