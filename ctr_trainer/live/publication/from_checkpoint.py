"""Publishes a checkpoint as the first generation of a publication."""

import contextlib
import functools
import os
import shutil
import sys

import numpy as np
import tensorflow as tf
import tqdm

from ctr_trainer.checkpoint.checkpoint import MANIFEST, Checkpoint
from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.snapshot.packed_rows import ROWS, pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import ArrowFile, arrow_file
from ctr_trainer.embedding.store.store import FileEntry
from ctr_trainer.embedding.table.row_kernels import first_not_finite
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.export.raw_inputs import inputs_of
from ctr_trainer.export.saved_model import load_spec
from ctr_trainer.live.publication.records import Place, Record
from ctr_trainer.live.publication.spool import Spool
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import diverged


def write_publication(url: Place, model: TrainedModel, checkpoint: Checkpoint, config: PublishConfig) -> Record:
    """Writes the first generation of a publication to a local path, which must be empty or absent.

    Raises:
      UserError: the checkpoint is damaged, is not finite or belongs to another model, or the publication cannot be
        written.
    """
    with temporary_directory() as place:
        tower = model.export_to(os.path.join(place, "tower"), checkpoint_path=checkpoint, rows="none")
        refuse_not_finite(tower, checkpoint)
        spool = Spool(
            url,
            checkpoint.model.get("name") or "",
            functools.partial(_write_rows, checkpoint),
            list(checkpoint.table_configs().values()),
            config.dtype,
            inputs=inputs_of(tower, load_spec(tower)),
            change_inputs=config.change_inputs,
        )
        taken = (path_of(checkpoint.path) / MANIFEST).stamp()[1] / 1e9
        return spool.write(checkpoint.step, lambda path: shutil.copytree(tower, path, dirs_exist_ok=True), taken)


def refuse_not_finite(tower: str, checkpoint: Checkpoint) -> None:
    """Raises UserError if a variable in a checkpoint's exported tower is not finite."""
    variables = tf.train.load_checkpoint(
        os.path.join(tower, tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
    )
    for name, dtype in variables.get_variable_to_dtype_map().items():
        if dtype.is_floating and not np.isfinite(variables.get_tensor(name)).all():
            raise diverged(f"{checkpoint.path}: the variable {name} is not finite")


def _write_rows(checkpoint: Checkpoint, path: str, epoch: int, dtype: str, after: int | None) -> list[FileEntry]:
    """Writes all rows of a checkpoint as `Store.publish` does."""
    files: dict[str, ArrowFile] = {}
    directory = LocalPath(path)
    directory.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.ExitStack() as stack,
        tqdm.tqdm(desc="packing rows", unit=" rows", disable=not sys.stderr.isatty()) as bar,
    ):
        for config, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
            table = config.name
            if (first := first_not_finite(np.ascontiguousarray(rows))) >= 0:
                raise diverged(f"{checkpoint.path}: the row of key {keys[first]} of table {table} is not finite")
            if table not in files:
                schema = packed_rows.schema(config, dtype, ROWS)
                files[table] = stack.enter_context(arrow_file(directory, packed_rows.file_name(table, ROWS), schema))
            files[table].write([key_array(keys), packed_rows.value_array(pack(rows, config, dtype, epoch))])
            bar.update(len(keys))
        return [
            dict(file=packed_rows.file_name(table, ROWS), table=table, kind=ROWS, **file.finish())
            for table, file in files.items()
        ]
