"""Checkpoints: dense variables and embedding rows of one step, under one manifest that is written last."""

import dataclasses
import json
import os
import re
import shutil
import zlib

from ctr_trainer.errors import UserError

_MANIFEST = "manifest.json"
_DIRECTORY = re.compile(r"step-(\d{10})")
DENSE = "dense"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One finished checkpoint.

    Attributes:
      path: its directory, `MODEL_DIR/checkpoints/step-0000001000`.
      step: the global step of both halves.
      tables: the files of the embedding rows, as `Store.save` described them.
      dense: the files of the dense variables: dicts of `file`, `bytes`, `crc32`.
      position: where the input goes on, or None.
      examples: examples trained on so far by all workers.
    """

    path: str
    step: int
    tables: list
    dense: list
    position: dict | None
    examples: int

    @property
    def dense_prefix(self):
        """What `tf.compat.v1.train.Saver` calls this checkpoint."""
        return os.path.join(self.path, DENSE)

    def verify_dense(self):
        """Raises UserError, naming the file, where a file of the dense variables is not as it was written."""
        for entry in self.dense:
            path = os.path.join(self.path, entry["file"])
            if not os.path.exists(path) or describe_file(self.path, entry["file"]) != entry:
                raise UserError(
                    f"{path} is missing, truncated or altered since the checkpoint was written; remove the directory "
                    f"{self.path} to go on from the checkpoint before it"
                )


def describe_file(directory, name):
    """-> {`file`, `bytes`, `crc32`} of a file."""
    crc, path = 0, os.path.join(directory, name)
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return {"file": name, "bytes": os.path.getsize(path), "crc32": crc}


def checkpoint_path(model_dir, step):
    """-> the directory of the checkpoint of `step`."""
    return os.path.join(model_dir, "checkpoints", f"step-{step:010d}")


def list_checkpoints(model_dir):
    """-> the finished checkpoints of a model directory, oldest first; one without its manifest does not exist."""
    root, found = os.path.join(model_dir, "checkpoints"), []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        manifest = os.path.join(root, name, _MANIFEST)
        if _DIRECTORY.fullmatch(name) and os.path.exists(manifest):
            with open(manifest) as file:
                found.append(Checkpoint(path=os.path.join(root, name), **json.load(file)))
    return found


def latest_checkpoint(model_dir):
    """-> the newest finished `Checkpoint`, or None."""
    checkpoints = list_checkpoints(model_dir)
    return checkpoints[-1] if checkpoints else None


def begin(path):
    """Makes `path` an empty directory to write a checkpoint into; an unfinished one there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def commit(path, step, tables, position, examples):
    """Makes the files under `path` a checkpoint: fsync, then the manifest by rename. -> `Checkpoint`."""
    names = sorted(name for name in os.listdir(path) if name.startswith(f"{DENSE}."))
    for name in names:
        _fsync(os.path.join(path, name))
    manifest = {
        "step": step,
        "tables": tables,
        "dense": [describe_file(path, name) for name in names],
        "position": position,
        "examples": examples,
    }
    draft = os.path.join(path, f"{_MANIFEST}.tmp")
    with open(draft, "w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, os.path.join(path, _MANIFEST))
    _fsync(path)
    _fsync(os.path.dirname(path))
    return Checkpoint(path=path, **manifest)


def remove_old(model_dir, keep):
    """Removes all but the newest `keep` checkpoints; 0 keeps all."""
    for checkpoint in list_checkpoints(model_dir)[:-keep] if keep else []:
        os.remove(os.path.join(checkpoint.path, _MANIFEST))  # first, so that a half-removed one does not count
        shutil.rmtree(checkpoint.path)


def _fsync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
