"""Makes a publication of a checkpoint: a generation whose base has all rows."""

import contextlib
import os
import sys
import uuid

import numpy as np
import tensorflow as tf
import tqdm

from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.snapshot.packed_rows import pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import arrow_file
from ctr_trainer.embedding.table.row_kernels import first_not_finite
from ctr_trainer.estimator.checkpoint import MANIFEST, Checkpoint, describe_file
from ctr_trainer.estimator.estimator import Estimator
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import diverged
from ctr_trainer.publication import records
from ctr_trainer.publication.records import BASE, Publication, Record

_GENERATION, _EPOCH = 1, 0


def write_publication(url: str | os.PathLike, estimator: Estimator, checkpoint: Checkpoint, dtype: str) -> Record:
    """Writes the first generation of a publication.

    Args:
      url: local path of the publication; nothing is there yet.
      estimator: the `Estimator` of the model.
      checkpoint: a `Checkpoint` of it.
      dtype: of the packed rows, see `packed_rows`.

    Raises:
      UserError: the checkpoint is damaged, of another model or not finite, or the publication cannot be written.
    """
    directory = records.generation_path(url, _GENERATION)
    dense, base = records.dense_name(_EPOCH), records.name_of(BASE, _EPOCH)
    tower = estimator.export_to(str(directory / dense), checkpoint=checkpoint, rows="none")
    refuse_not_finite(tower, checkpoint)
    (directory / base).mkdir(parents=True, exist_ok=True)
    configs, files = _write_rows(directory, base, checkpoint, dtype)
    record = Record(
        model=(checkpoint.model or {}).get("name") or "",
        generation=_GENERATION,
        epoch=_EPOCH,
        kind=BASE,
        global_step=checkpoint.step,
        time=(path_of(checkpoint.path) / MANIFEST).stamp()[1] / 1e9,
        dtype=dtype,
        tables=[{"config": config.to_dict()} for config in configs],
        files=files,
        dense=dense,
        dense_files=[describe_file(directory / dense, name) for name in (directory / dense).files()],
    )
    records.write_record(url, record)
    records.write_publication(url, Publication(record.model, _GENERATION, uuid.uuid4().hex))
    return record


def refuse_not_finite(tower: str, checkpoint: Checkpoint) -> None:
    """Refuses the exported tower of a checkpoint if a variable of it is not finite.

    Raises:
      UserError: names the checkpoint and the variable.
    """
    variables = tf.train.load_checkpoint(
        os.path.join(tower, tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
    )
    for name, dtype in variables.get_variable_to_dtype_map().items():
        if dtype.is_floating and not np.isfinite(variables.get_tensor(name)).all():
            raise diverged(f"{checkpoint.path}: the variable {name} is not finite")


def _write_rows(directory, base, checkpoint, dtype):
    """Returns (the tables' configurations, the files' entries of the record)."""
    configs, files, entries = {}, {}, []
    with (
        contextlib.ExitStack() as stack,
        tqdm.tqdm(desc="packing rows", unit=" rows", disable=not sys.stderr.isatty()) as bar,
    ):
        for config, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
            table = config.name
            if (first := first_not_finite(np.ascontiguousarray(rows))) >= 0:
                raise diverged(f"{checkpoint.path}: the row of key {keys[first]} of table {table} is not finite")
            if table not in files:
                file = f"{base}/{packed_rows.file_name(table, packed_rows.ROWS)}"
                schema = packed_rows.schema(config, dtype, packed_rows.ROWS)
                configs[table], files[table] = config, stack.enter_context(arrow_file(directory, file, schema))
                entries.append(dict(file=file, table=table, kind=packed_rows.ROWS))
            values = packed_rows.value_array(pack(rows, config, dtype, _EPOCH))
            files[table].write([key_array(keys), values])
            bar.update(len(keys))
        entries = [{**entry, **files[entry["table"]].finish()} for entry in entries]
    return configs.values(), entries
