"""Publishes a checkpoint as the first generation of a publication."""

import contextlib
import os
import sys
import uuid
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.snapshot.packed_rows import pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import ArrowFile, arrow_file
from ctr_trainer.embedding.table.row_kernels import first_not_finite
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.checkpoint import MANIFEST, Checkpoint, describe_file
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.export.saved_model import load_spec
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.dense_tower import inputs_of
from ctr_trainer.live.publication.records import BASE, Place, Publication, Record
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import diverged

_GENERATION, _EPOCH = 1, 0


def write_publication(url: Place, model: TrainedModel, checkpoint: Checkpoint, config: PublishConfig) -> Record:
    """Writes the first generation of a publication to a local path, which must be empty or absent.

    Raises:
      UserError: the checkpoint is damaged, is not finite or belongs to another model, or the publication cannot be
        written.
    """
    directory = records.generation_path(url, _GENERATION)
    dense, base = records.dense_name(_EPOCH), records.name_of(BASE, _EPOCH)
    tower = model.export_to(str(directory / dense), checkpoint=checkpoint, rows="none")
    refuse_not_finite(tower, checkpoint)
    (directory / base).mkdir(parents=True, exist_ok=True)
    configs, files = _write_rows(directory, base, checkpoint, config.dtype)
    record = Record(
        model=(checkpoint.model or {}).get("name") or "",
        generation=_GENERATION,
        epoch=_EPOCH,
        kind=BASE,
        global_step=checkpoint.step,
        time=(path_of(checkpoint.path) / MANIFEST).stamp()[1] / 1e9,
        dtype=config.dtype,
        tables=[{"config": config.to_dict()} for config in configs],
        files=files,
        dense=dense,
        dense_files=[describe_file(directory / dense, name) for name in (directory / dense).files()],
        inputs=inputs_of(tower, load_spec(tower)),
        change_inputs=config.change_inputs,
    )
    records.write_record(url, record)
    records.write_publication(url, Publication(record.model, _GENERATION, uuid.uuid4().hex))
    return record


def refuse_not_finite(tower: str, checkpoint: Checkpoint) -> None:
    """Raises UserError if a variable in a checkpoint's exported tower is not finite. The message names both."""
    variables = tf.train.load_checkpoint(
        os.path.join(tower, tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
    )
    for name, dtype in variables.get_variable_to_dtype_map().items():
        if dtype.is_floating and not np.isfinite(variables.get_tensor(name)).all():
            raise diverged(f"{checkpoint.path}: the variable {name} is not finite")


def _write_rows(
    directory: Path, base: str, checkpoint: Checkpoint, dtype: str
) -> tuple[list[TableConfig], list[dict[str, Any]]]:
    """Writes the packed rows. Returns the tables' configurations and the entries of their files for the record."""
    configs: dict[str, TableConfig] = {}
    files: dict[str, ArrowFile] = {}
    entries: list[dict[str, Any]] = []
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
    return list(configs.values()), entries
