"""Publishes a checkpoint as the first generation of a publication."""

import contextlib
import functools
import os
import shutil
import sys

import tqdm

from ctr_trainer.checkpoint.checkpoint import MANIFEST, Checkpoint
from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.snapshot.packed_rows import ROWS, pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import ArrowFile, arrow_file
from ctr_trainer.embedding.store.store import FileEntry
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.export.raw_inputs import inputs_of
from ctr_trainer.export.saved_model import load_spec
from ctr_trainer.live.publication.records import Place, Record
from ctr_trainer.live.publication.spool import Spool
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.temporary import temporary_directory


def write_publication(url: Place, model: TrainedModel, checkpoint: Checkpoint, config: PublishConfig) -> Record:
    """Writes the first generation of a publication to a local path, which must be empty or absent.

    A checkpoint is finite, because `Saving` writes no other. Raises UserError if it is damaged or of another model.
    """
    with temporary_directory() as place:
        tower = model.export_to(os.path.join(place, "tower"), checkpoint_path=checkpoint, rows="none")
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
            if table not in files:
                schema = packed_rows.schema(config, dtype, ROWS)
                files[table] = stack.enter_context(arrow_file(directory, packed_rows.file_name(table, ROWS), schema))
            files[table].write(
                [key_array(keys), packed_rows.value_array(pack(config.form.read(rows), config, dtype, epoch))]
            )
            bar.update(len(keys))
        return [
            dict(file=packed_rows.file_name(table, ROWS), table=table, kind=ROWS, **file.finish())
            for table, file in files.items()
        ]
