"""Makes a new base of a base and the epochs after it."""

import contextlib
import dataclasses

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.snapshot.arrow_file import arrow_file
from ctr_trainer.embedding.snapshot.packed_files import ROWS, file_name, read_removed, read_rows, schema, value_array
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.publication import records

_LEAST_EPOCHS, _MOST_EPOCHS = 10, 1000


def is_due(base, epochs):
    """-> whether the epochs since a base take as much to read as the base, or are many.

    Args:
      base: `Record` of the newest base.
      epochs: list of the `Record`s after it.
    """
    changed = sum(entry["bytes"] for record in epochs for entry in record.files)
    enough = changed >= sum(entry["bytes"] for entry in base.files) and len(epochs) >= _LEAST_EPOCHS
    return enough or len(epochs) >= _MOST_EPOCHS


def compact(url, base, epochs):
    """Writes the base of the state after the last of the epochs, its record last. -> the `Record`

    Memory: 16 bytes per key that changed since the base.

    Args:
      url: path or URL of the publication.
      base, epochs: as for `is_due`.

    Raises:
      UserError: a file cannot be read, is damaged, or cannot be written.
    """
    last = epochs[-1]
    directory, name = records.generation_path(url, last.generation), records.name_of(records.BASE, last.epoch)
    (directory / name).mkdir(parents=True, exist_ok=True)
    files = []
    for table, config in last.configs().items():
        file = f"{name}/{file_name(table, ROWS)}"
        with arrow_file(directory, file, schema(config, last.dtype, ROWS)) as writing:
            for keys, values in _merged(directory, [base, *epochs], table, config):
                writing.write([key_array(np.ascontiguousarray(keys)), value_array(np.ascontiguousarray(values))])
            files.append(dict(file=file, table=table, kind=ROWS, **writing.finish()))
    (directory / name).sync()
    record = dataclasses.replace(last, kind=records.BASE, files=files)
    records.write_record(url, record)
    return record


def _merged(directory, chain, table, config):
    """Yields (keys, values) blocks of a table: each key once, with its last row; no removed key."""
    newer = Index()
    for record in reversed(chain):
        seen = []  # The keys of this record; a key comes once in it.
        for entry in record.files:
            if entry["table"] != table:
                continue
            with _checked(directory, entry) as local:
                if entry["kind"] != ROWS:
                    seen += [keys.copy() for keys in read_removed(local, config, record.dtype)]
                    continue
                for keys, values in read_rows(local, config, record.dtype):
                    new = newer.find(np.require(keys, requirements=("C", "A"))) < 0
                    yield keys[new], values[new]
                    if record is not chain[0]:
                        seen.append(keys.copy())
        for keys in seen:
            newer.find_or_add(keys)


@contextlib.contextmanager
def _checked(directory, entry):
    path = directory / entry["file"]
    with path.local_file() as local:
        records.check_file(local, entry, path)
        yield local
