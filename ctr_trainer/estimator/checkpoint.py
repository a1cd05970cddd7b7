"""Checkpoints: dense variables and embedding rows of one step, under one manifest that is written last.

The rows are a chain: a full snapshot and the deltas after it. `retention` says which checkpoints share files.
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.path import Path
from ctr_trainer.system.files.paths import bytes_and_crc32, path_of
from ctr_trainer.system.messages.errors import UserError, is_loss

_log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_DIRECTORY = re.compile(r"step-(\d{10})")
DENSE = "dense"
DRAFT = "draft-"  # Prefix of the name of a directory of BEST that is being written.
RECENT, BEST = "checkpoints", "best"  # Below the model directory: the newest checkpoints, and the best one.
Entry = dict[str, Any]  # The entry of a file in a manifest.


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint.

    Attributes:
      path: its directory, `MODEL_DIR/checkpoints/step-0000001000`, or the URL of the directory.
      step: the global step of both halves.
      tables: the files of the embedding rows, as `Store.save` described them: of a full snapshot, then of each delta.
      dense: the files of the dense variables: dicts of `file`, `bytes`, `crc32`.
      position: where the input resumes, or None.
      examples: number of examples that all workers have trained on so far.
      negative_sampling: the share of the negative examples that it was trained with last; None if none was recorded.
      model: what makes the model's graph, see `ModelRecord.to_dict`; None if it was not recorded.
      decay: `begin` and `end` of the run's learning-rate schedule, see `RunLength.decay`; None if none was recorded.
      dense_directory: the directory of the dense files, if it is not `path`; see `with_local_dense`.
    """

    path: str
    step: int
    tables: list[Entry]
    dense: list[Entry]
    position: dict[str, Any] | None
    examples: int
    negative_sampling: float | None = None
    model: dict[str, Any] | None = None
    decay: dict[str, int | None] | None = None
    dense_directory: str | None = None

    @property
    def dense_prefix(self) -> str:
        """The name of this checkpoint for `tf.compat.v1.train.Saver`."""
        return str(path_of(self.dense_directory or self.path) / DENSE)

    @contextlib.contextmanager
    def with_local_dense(self) -> Iterator["Checkpoint"]:
        """Gives this Checkpoint with the files of its dense variables on a local disk, as TensorFlow reads them."""
        with path_of(self.path).local_files([entry["file"] for entry in self.dense]) as directory:
            yield dataclasses.replace(self, dense_directory=str(directory))

    @property
    def snapshot(self) -> str | None:
        """The `since` by which `Store.save` writes only what changed after this checkpoint; None without rows."""
        return self.tables[-1].get("snapshot") if self.tables else None

    @property
    def base(self) -> str | None:
        """The full snapshot that its rows begin with; for a checkpoint without rows, its path."""
        return self.tables[0].get("snapshot") if self.tables else self.path

    @property
    def chain_length(self) -> int:
        """How many snapshots the rows consist of: 1 for a full one."""
        return len({entry.get("snapshot") for entry in self.tables})

    def table_configs(self) -> dict[str, TableConfig]:
        """Returns by name the `TableConfig` that each table was trained with."""
        configs = [snapshot.read_config(self.path, entry) for entry in self.tables]
        return {config.name: config for config in configs}

    def verify(self) -> None:
        """Reads every file.

        Raises:
          UserError: a file is missing, or differs from what was written; names it.
        """
        snapshot.check_chain(self.tables)
        for entry in self.tables:
            snapshot.check(self.path, entry)
        self.verify_dense()

    def verify_dense(self) -> None:
        """Raises UserError if a file of the dense variables differs from what was written; names it."""
        for entry in self.dense:
            path = path_of(self.path) / entry["file"]
            if not path.exists() or describe_file(self.path, entry["file"]) != entry:
                raise UserError(f"{path} is missing, truncated or altered since the checkpoint was written")


def describe_file(directory: str | os.PathLike[str] | Path, name: str) -> Entry:
    """Returns {`file`, `bytes`, `crc32`} of a file."""
    size, crc32 = bytes_and_crc32(path_of(directory) / name)
    return {"file": name, "bytes": size, "crc32": crc32}


def checkpoint_path(model_dir: str, step: int) -> str:
    """Returns the directory of the checkpoint of `step`."""
    return str(path_of(model_dir) / RECENT / f"step-{step:010d}")


def step_of(path: str) -> int:
    """Returns the step of a checkpoint's directory."""
    return int(path_of(path).name.removeprefix("step-"))


def list_checkpoints(model_dir: str) -> list[Checkpoint]:
    """Returns the finished checkpoints of a model directory, oldest first; leaves out damaged manifests."""
    found = []
    for path in directories(model_dir):
        try:
            found.append(load(path))
        except UserError as error:
            if is_loss(error):
                raise  # The store does not answer; that says nothing about the checkpoint.
            _log.error("%s", error)
    return found


def latest_checkpoint(model_dir: str) -> Checkpoint | None:
    """Returns the newest finished `Checkpoint`, or None; its files are not read."""
    checkpoints = list_checkpoints(model_dir)
    return checkpoints[-1] if checkpoints else None


def newest_whole(model_dir: str) -> Checkpoint | None:
    """Returns the newest `Checkpoint` whose files are all as they were written; None if there is no checkpoint.

    Logs which checkpoints it refuses, and why.

    Raises:
      UserError: there are checkpoints, but none is whole.
    """
    refused = []
    for path in reversed(directories(model_dir)):
        try:
            checkpoint = load(path)
            checkpoint.verify()
        except UserError as error:
            if is_loss(error):
                raise
            _log.error("REFUSED the checkpoint %s: %s", path, error)
            refused.append(f"\n  {error}")
            continue
        if refused:
            _log.error("resuming from the previous checkpoint: %s, of step %d", path, checkpoint.step)
        return checkpoint
    if refused:
        raise UserError(
            f"no checkpoint in {model_dir} is valid, so there is nothing to resume from; to train from the beginning, "
            f"name another model_dir. What is wrong: {''.join(refused)}"
        )
    return None


def whole(model_dir: str, step: int, places: Sequence[str] = (RECENT, BEST)) -> Checkpoint:
    """Returns the `Checkpoint` of a step, from the first of the places where it is whole.

    Raises:
      UserError: there is none, or all are damaged.
    """
    refused = []
    for place in places:
        path = path_of(model_dir) / place / path_of(checkpoint_path(model_dir, step)).name
        if (path / MANIFEST).exists():
            try:
                checkpoint = load(str(path))
                checkpoint.verify()
                return checkpoint
            except UserError as error:
                if is_loss(error):
                    raise
                _log.error("REFUSED the checkpoint %s: %s", path, error)
                refused.append(error)
    if refused:
        raise refused[0]
    there = ", ".join(str(c.step) for c in list_checkpoints(model_dir)) or "none"
    raise UserError(f"there is no checkpoint of step {step} in {model_dir}; there are: {there}")


def directories(model_dir: str, place: str = RECENT) -> list[str]:
    """Returns the checkpoints' directories that have a manifest, oldest first."""
    root = path_of(model_dir) / place
    paths = sorted(path for path in root.iterdir() if _DIRECTORY.fullmatch(path.name)) if root.is_dir() else []
    return [str(path) for path in paths if (path / MANIFEST).exists()]


def unfinished(model_dir: str) -> list[str]:
    """Returns drafts, and directories without a manifest: a killed process was writing or removing them."""
    found: list[str] = []
    for place in (RECENT, BEST):
        root = path_of(model_dir) / place
        paths: list[Path] = [*root.iterdir()] if root.is_dir() else []
        for path in sorted(paths):
            if _DIRECTORY.fullmatch(path.name.removeprefix(DRAFT)) and path.is_dir():
                if path.name.startswith(DRAFT) or not (path / MANIFEST).exists():
                    found.append(str(path))
    return found


def load(path: str) -> Checkpoint:
    """Returns the Checkpoint in a directory.

    Raises:
      UserError: its manifest is truncated or altered.
    """
    manifest = path_of(path) / MANIFEST
    try:
        values = json.loads(manifest.read_bytes())
        crc32 = values.pop("crc32", None)
        if crc32 is not None and crc32 != _crc32(values):
            raise ValueError("its checksum does not match")
        return Checkpoint(path=path, **values)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{manifest} is truncated or altered: {error}") from None


def _crc32(manifest: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def begin(path: str | os.PathLike[str] | Path) -> None:
    """Makes `path` an empty directory to write a checkpoint into; removes an unfinished one there."""
    path_of(path).remove_all()
    path_of(path).mkdir(parents=True)


def commit(
    path: str,
    step: int,
    tables: list[Entry],
    position: Mapping[str, Any] | None,
    examples: int,
    negative_sampling: float | None = None,
    model: Mapping[str, Any] | None = None,
    decay: Mapping[str, int | None] | None = None,
) -> Checkpoint:
    """Makes the files under `path` a checkpoint: syncs them to the disk, then writes the manifest.

    Args:
      path: directory with the files of both halves.
      step, tables, position, examples, negative_sampling, model, decay: see `Checkpoint`.
    """
    directory = path_of(path)
    names = sorted(file.name for file in directory.iterdir() if file.name.startswith(f"{DENSE}."))
    for name in names:
        (directory / name).sync()
    manifest: dict[str, Any] = {
        "step": step,
        "tables": tables,
        "dense": [describe_file(path, name) for name in names],
        "position": position,
        "examples": examples,
        "negative_sampling": negative_sampling,
        "model": model,
        "decay": decay,
    }
    # The checksum covers the values as a reader gets them: JSON has no tuples, and its keys are strings.
    manifest = json.loads(json.dumps(manifest))
    (directory / MANIFEST).write_json({**manifest, "crc32": _crc32(manifest)})
    directory.parent.sync()
    return Checkpoint(path=path, **manifest)
