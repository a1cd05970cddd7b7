"""Checkpoints: the dense variables and embedding rows of one step, with one manifest that is written last.

The rows form a chain: a full snapshot and the deltas after it. `retention` explains which checkpoints share files.
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import Advanced, Path, bytes_and_crc32, check_below, path_of
from ctr_trainer.system.messages.errors import UserError, is_loss

_log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
DIRECTORY = re.compile(r"step-(\d{10})")
DENSE = "dense"
DRAFT = "draft-"  # Prefix of the name of a directory of BEST that is being written.
RECENT, BEST = "checkpoints", "best"  # In the model directory: the newest checkpoints, and the best one.
_OF_THE_PLACE = ("path", "dense_directory")  # Fields that the manifest leaves out.
Entry = dict[str, Any]  # The entry of a file in a manifest.


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Checkpoint(str):
    """A finished checkpoint: its `path`, a str, with what is known of it.

    Attributes:
      path: directory or URL of the checkpoint, such as `MODEL_DIR/checkpoints/step-0000001000`.
      step: the global step of the dense variables and of the rows.
      tables: the files of the embedding rows, as returned by `Store.save`: first the full snapshot, then each delta.
      dense: the files of the dense variables: dicts of `file`, `bytes`, `crc32`.
      position: where the input resumes, or None.
      examples: number of examples that all workers have trained on so far.
      negative_sampling: fraction of the negative examples used in the latest training; None for a model without it.
      model: what determines the model's graph, see `ModelRecord.to_dict`, and `new_keys`, see `NewKeys.in_training`.
      decay: `begin` and `end` of the run's learning-rate schedule, see `RunLength.decay`.
      data_begin: the step at which the training on the current data began; above 0 if it is not the model's first data.
      dense_directory: the directory of the dense files, if it is not `path`; see `with_local_dense`.
    """

    path: str
    step: int
    tables: list[Entry]
    dense: list[Entry]
    position: dict[str, Any] | None
    examples: int
    negative_sampling: float | None = None
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    decay: dict[str, int | None] = dataclasses.field(default_factory=lambda: {"begin": 0, "end": None})
    data_begin: int = 0
    dense_directory: str | None = None

    def __new__(cls, path: str, *_: Any, **__: Any) -> "Checkpoint":
        return super().__new__(cls, path)

    @property
    def dense_prefix(self) -> str:
        """The name of this checkpoint for `tf.compat.v1.train.Saver`."""
        return str(path_of(self.dense_directory or self.path) / DENSE)

    @contextlib.contextmanager
    def with_local_dense(self) -> Iterator["Checkpoint"]:
        """Yields this checkpoint with its dense files on a local disk, where TensorFlow can read them."""
        with path_of(self.path).local_files([entry["file"] for entry in self.dense]) as directory:
            yield dataclasses.replace(self, dense_directory=str(directory))

    @property
    def snapshot(self) -> str | None:
        """The `since` with which `Store.save` writes only the changes after this checkpoint; None without rows."""
        return self.tables[-1]["snapshot"] if self.tables else None

    @property
    def base(self) -> str | None:
        """The full snapshot at the start of the chain of rows; the checkpoint's path if it has no rows."""
        return self.tables[0]["snapshot"] if self.tables else self.path

    @property
    def chain_length(self) -> int:
        """The number of snapshots in the chain of rows: 1 for a full snapshot without deltas."""
        return len({entry["snapshot"] for entry in self.tables})

    def table_configs(self) -> dict[str, TableConfig]:
        """Returns a dict of table name -> the `TableConfig` with which the table was trained."""
        configs = [snapshot.read_config(self.path, entry) for entry in snapshot.rows_files(self.tables)]
        return {config.name: config for config in configs}

    def verify(self, advanced: Advanced = lambda text: None) -> None:
        """Reads and checks every file. Calls `advanced` with a text after each block.

        Raises UserError: a file is missing or altered. The message names the file.
        """
        snapshot.check_chain(self.tables)
        for entry in self.tables:
            snapshot.check(self.path, entry, advanced)
        for entry in self.dense:
            path = path_of(self.path) / entry["file"]
            if not path.exists() or describe_file(self.path, entry["file"], advanced) != entry:
                raise UserError(f"{path} is missing, truncated or altered since the checkpoint was written")


def describe_file(directory: str | os.PathLike[str] | Path, name: str, advanced: Advanced = lambda text: None) -> Entry:
    """Returns {`file`, `bytes`, `crc32`} of a file."""
    size, crc32 = bytes_and_crc32(path_of(directory) / name, advanced)
    return {"file": name, "bytes": size, "crc32": crc32}


def checkpoint_path(model_dir: str, step: int) -> str:
    """Returns the directory of the checkpoint of `step`."""
    return str(path_of(model_dir) / RECENT / f"step-{step:010d}")


def step_of(path: str) -> int:
    """Returns the step of a checkpoint's directory."""
    return int(path_of(path).name.removeprefix("step-"))


def list_checkpoints(model_dir: str, place: str = RECENT) -> list[Checkpoint]:
    """Returns the finished checkpoints of a model directory, oldest first. Skips those with a damaged manifest."""
    found = []
    for path in directories(model_dir, place):
        try:
            found.append(load(path))
        except UserError as error:
            if is_loss(error):
                raise  # The storage does not answer; the checkpoint may be intact.
            _log.error("%s", error)
    return found


def latest_checkpoint(model_dir: str) -> Checkpoint | None:
    """Returns the newest finished `Checkpoint`, or None. Reads only manifests."""
    return next(reversed(list_checkpoints(model_dir)), None)


def newest_whole(model_dir: str, advanced: Advanced = lambda text: None) -> Checkpoint | None:
    """Returns the newest `Checkpoint` whose files are all intact; None if there is no checkpoint.

    Logs each damaged checkpoint that it skips, with the reason. For `advanced` see `Checkpoint.verify`.

    Raises UserError: there are checkpoints, but all are damaged.
    """
    checkpoint, refused = _first_whole(reversed(directories(model_dir)), advanced)
    if checkpoint and refused:
        _log.error("resuming from the previous checkpoint: %s, of step %d", checkpoint.path, checkpoint.step)
    elif refused:
        what = "".join(f"\n  {error}" for error in refused)
        raise UserError(
            f"no checkpoint in {model_dir} is valid, so there is nothing to resume from; to train from the beginning, "
            f"name another model_dir. What is wrong: {what}"
        )
    return checkpoint


def whole(
    model_dir: str,
    step: int,
    places: Sequence[str] = (RECENT, BEST),
    advanced: Advanced = lambda text: None,
) -> Checkpoint:
    """Returns the `Checkpoint` of a step from the first of `places` that has an intact copy.

    For `advanced` see `Checkpoint.verify`.

    Raises UserError: there is no checkpoint of this step, or all its copies are damaged.
    """
    name = path_of(checkpoint_path(model_dir, step)).name
    paths = (path_of(model_dir) / place / name for place in places)
    checkpoint, refused = _first_whole((str(path) for path in paths if (path / MANIFEST).exists()), advanced)
    if checkpoint:
        return checkpoint
    if refused:
        raise refused[0]
    there = ", ".join(str(c.step) for c in list_checkpoints(model_dir)) or "none"
    raise UserError(f"there is no checkpoint of step {step} in {model_dir}; there are: {there}")


def _first_whole(paths: Iterable[str], advanced: Advanced) -> tuple[Checkpoint | None, list[UserError]]:
    """Returns the first intact checkpoint, or None, and the errors of the damaged checkpoints before it."""
    refused: list[UserError] = []
    for path in paths:
        try:
            return load_whole(path, advanced), refused
        except UserError as error:
            if is_loss(error):
                raise  # The storage does not answer; the checkpoint may be intact.
            _log.error("REFUSED the checkpoint %s: %s", path, error)
            refused.append(error)
    return None, refused


def directories(model_dir: str, place: str = RECENT) -> list[str]:
    """Returns the checkpoint directories that have a manifest, oldest first."""
    root = path_of(model_dir) / place
    paths = sorted(path for path in root.iterdir() if DIRECTORY.fullmatch(path.name)) if root.is_dir() else []
    return [str(path) for path in paths if (path / MANIFEST).exists()]


def load(path: str) -> Checkpoint:
    """Returns the Checkpoint in a directory."""
    manifest = path_of(path) / MANIFEST
    try:
        values = json.loads(manifest.read_bytes())
        if values.pop("crc32", None) != _crc32(values):
            raise ValueError("its checksum does not match")
        check_below(entry["file"] for entry in (*values["tables"], *values["dense"]))
        return Checkpoint(path=path, **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{manifest} is truncated or altered: {error}") from None


def load_whole(path: str, advanced: Advanced = lambda text: None) -> Checkpoint:
    """Returns the Checkpoint in a directory. Raises UserError if any of its files is damaged, see `verify`."""
    checkpoint = load(path)
    checkpoint.verify(advanced)
    return checkpoint


def _crc32(manifest: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def begin(path: str | os.PathLike[str] | Path) -> None:
    """Creates the empty directory `path` for a new checkpoint. Removes an unfinished checkpoint there."""
    path_of(path).remove_all()
    path_of(path).mkdir(parents=True)


def commit(checkpoint: Checkpoint) -> Checkpoint:
    """Makes a checkpoint valid after its files were written: syncs its dense files to disk and writes the manifest.

    Returns the checkpoint with the entries of its dense files, which the argument need not have.
    """
    directory = path_of(checkpoint.path)
    names = sorted(file.name for file in directory.iterdir() if file.name.startswith(f"{DENSE}."))
    for name in names:
        (directory / name).sync()
    values = vars(checkpoint) | {"dense": [describe_file(directory, name) for name in names]}
    # The checksum covers the values as JSON returns them: with lists instead of tuples, and with strings as keys.
    manifest = json.loads(json.dumps({name: value for name, value in values.items() if name not in _OF_THE_PLACE}))
    (directory / MANIFEST).write_json({**manifest, "crc32": _crc32(manifest)})
    directory.parent.sync()
    return Checkpoint(path=checkpoint.path, **manifest)
