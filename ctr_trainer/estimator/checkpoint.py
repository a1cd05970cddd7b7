"""Checkpoints: dense variables and embedding rows of one step, under one manifest that is written last.

The rows are a chain: a full snapshot and the deltas after it. `retention` says which checkpoints share files of theirs.
"""

import dataclasses
import json
import logging
import os
import re
import shutil
import zlib

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.files import durable_file
from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_DIRECTORY = re.compile(r"step-(\d{10})")
DENSE = "dense"
DRAFT = "draft-"  # Stands before the name of a directory of BEST that is being written.
RECENT, BEST = "checkpoints", "best"  # Below the model directory: those kept by age, and the best one.


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One finished checkpoint.

    Attributes:
      path: its directory, `MODEL_DIR/checkpoints/step-0000001000`.
      step: the global step of both halves.
      tables: the files of the embedding rows, as `Store.save` described them: of a full snapshot, then of each delta.
      dense: the files of the dense variables: dicts of `file`, `bytes`, `crc32`.
      position: where the input goes on, or None.
      examples: examples trained on so far by all workers.
      model: what makes the model's graph, see `ModelRecord.to_dict`; None where it was not recorded.
      negative_sampling: the share of the negative examples that it was trained with last; None where none was recorded.
      decay: of its run's learning rates, {`begin`, `end`}, see `RunLength.decay`; None where none was recorded.
    """

    path: str
    step: int
    tables: list
    dense: list
    position: dict | None
    examples: int
    negative_sampling: float | None = None
    model: dict | None = None
    decay: dict | None = None

    @property
    def dense_prefix(self):
        """What `tf.compat.v1.train.Saver` calls this checkpoint."""
        return os.path.join(self.path, DENSE)

    @property
    def snapshot(self):
        """What `Store.save` calls the state of the rows, to write only what changes from here on; None without rows."""
        return self.tables[-1].get("snapshot") if self.tables else None

    @property
    def base(self):
        """The full snapshot that its rows begin with; of a checkpoint without rows, itself."""
        return self.tables[0].get("snapshot") if self.tables else self.path

    @property
    def chain_length(self):
        """How many snapshots the rows are: 1 for a full one."""
        return len({entry.get("snapshot") for entry in self.tables})

    def table_configs(self):
        """-> the `TableConfig` of each table, by name, as it was trained with."""
        configs = [snapshot.read_config(self.path, entry) for entry in self.tables]
        return {config.name: config for config in configs}

    def verify(self):
        """Reads every file.

        Raises:
          UserError: one is missing, or not as it was written; names it.
        """
        snapshot.check_chain(self.tables)
        for entry in self.tables:
            snapshot.check(self.path, entry)
        self.verify_dense()

    def verify_dense(self):
        """Raises UserError, naming the file, where a file of the dense variables is not as it was written."""
        for entry in self.dense:
            path = os.path.join(self.path, entry["file"])
            if not os.path.exists(path) or describe_file(self.path, entry["file"]) != entry:
                raise UserError(f"{path} is missing, truncated or altered since the checkpoint was written")


def describe_file(directory, name):
    """-> {`file`, `bytes`, `crc32`} of a file."""
    crc, path = 0, os.path.join(directory, name)
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return {"file": name, "bytes": os.path.getsize(path), "crc32": crc}


def checkpoint_path(model_dir, step):
    """-> the directory of the checkpoint of `step`."""
    return os.path.join(model_dir, RECENT, f"step-{step:010d}")


def step_of(path):
    """-> the step of a checkpoint's directory."""
    return int(_DIRECTORY.fullmatch(os.path.basename(path)).group(1))


def list_checkpoints(model_dir):
    """-> the finished checkpoints of a model directory, oldest first; one without a sound manifest does not exist."""
    found = []
    for path in directories(model_dir):
        try:
            found.append(load(path))
        except UserError as error:
            _log.error("%s", error)
    return found


def latest_checkpoint(model_dir):
    """-> the newest finished `Checkpoint`, or None; its files are not read."""
    checkpoints = list_checkpoints(model_dir)
    return checkpoints[-1] if checkpoints else None


def newest_whole(model_dir):
    """-> the newest `Checkpoint` whose files are all as they were written, or None where there is no checkpoint.

    Logs which it refuses, and why.

    Raises:
      UserError: there are checkpoints, and none is whole.
    """
    refused = []
    for path in reversed(directories(model_dir)):
        try:
            checkpoint = load(path)
            checkpoint.verify()
        except UserError as error:
            _log.error("REFUSED the checkpoint %s: %s", path, error)
            refused.append(f"\n  {error}")
            continue
        if refused:
            _log.error("going on from the checkpoint before it: %s, of step %d", path, checkpoint.step)
        return checkpoint
    if refused:
        raise UserError(
            f"no checkpoint in {model_dir} is whole, so there is nothing to go on from; to train from the beginning, "
            f"name another --model_dir. What is wrong: {''.join(refused)}"
        )
    return None


def whole(model_dir, step, places=(RECENT, BEST)):
    """-> the `Checkpoint` of a step, from the first of the places in which it is whole.

    Raises:
      UserError: there is none, or each is damaged.
    """
    refused = []
    for place in places:
        path = os.path.join(model_dir, place, os.path.basename(checkpoint_path(model_dir, step)))
        if os.path.exists(os.path.join(path, MANIFEST)):
            try:
                checkpoint = load(path)
                checkpoint.verify()
                return checkpoint
            except UserError as error:
                _log.error("REFUSED the checkpoint %s: %s", path, error)
                refused.append(error)
    if refused:
        raise refused[0]
    there = ", ".join(str(c.step) for c in list_checkpoints(model_dir)) or "none"
    raise UserError(f"there is no checkpoint of step {step} in {model_dir}; there are: {there}")


def directories(model_dir, place=RECENT):
    """-> the checkpoints' directories that have a manifest, oldest first."""
    root = os.path.join(model_dir, place)
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    paths = [os.path.join(root, name) for name in names if _DIRECTORY.fullmatch(name)]
    return [path for path in paths if os.path.exists(os.path.join(path, MANIFEST))]


def unfinished(model_dir):
    """-> the directories that a killed process had begun to write or to remove: without a manifest, or drafts."""
    found = []
    for place in (RECENT, BEST):
        root = os.path.join(model_dir, place)
        for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
            path, is_draft = os.path.join(root, name), name.startswith(DRAFT)
            if _DIRECTORY.fullmatch(name.removeprefix(DRAFT)) and os.path.isdir(path):
                if is_draft or not os.path.exists(os.path.join(path, MANIFEST)):
                    found.append(path)
    return found


def load(path):
    """-> the Checkpoint in a directory.

    Raises:
      UserError: its manifest is truncated or altered.
    """
    manifest = os.path.join(path, MANIFEST)
    try:
        with open(manifest) as file:
            values = json.load(file)
        crc32 = values.pop("crc32", None)
        if crc32 is not None and crc32 != _crc32(values):
            raise ValueError("its checksum is another")
        return Checkpoint(path=path, **values)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{manifest} is truncated or altered: {error}") from None


def _crc32(manifest):
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def begin(path):
    """Makes `path` an empty directory to write a checkpoint into; an unfinished one there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def commit(path, step, tables, position, examples, negative_sampling=None, model=None, decay=None):
    """Makes the files under `path` a checkpoint: fsync, then the manifest by rename. -> `Checkpoint`."""
    names = sorted(name for name in os.listdir(path) if name.startswith(f"{DENSE}."))
    for name in names:
        durable_file.fsync_path(os.path.join(path, name))
    manifest = {
        "step": step,
        "tables": tables,
        "dense": [describe_file(path, name) for name in names],
        "position": position,
        "examples": examples,
        "negative_sampling": negative_sampling,
        "model": model,
        "decay": decay,
    }
    # As it is read back: JSON has no tuples, and only strings for keys.
    manifest = json.loads(json.dumps(manifest))
    durable_file.write_json(os.path.join(path, MANIFEST), {**manifest, "crc32": _crc32(manifest)})
    durable_file.fsync_path(os.path.dirname(path))
    return Checkpoint(path=path, **manifest)
