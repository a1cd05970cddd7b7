"""The snapshot that a service writes when it is told to end, and that another service starts from."""

import json

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_MANIFEST = "manifest.json"


def write(store, data_dir, shard, shards):
    """Writes all rows of a LocalStore below `data_dir`, the manifest last. -> the directory."""
    path = path_of(data_dir) / "at-exit" / f"shard-{shard:05d}-of-{shards:05d}"
    path.mkdir(parents=True, exist_ok=True)
    manifest = path / _MANIFEST
    manifest.unlink(missing_ok=True)  # It lists the files that are about to be replaced.
    files = store.save(path, 0, None, shard, shards)
    manifest.write_json({"shard": shard, "shards": shards, "files": files})
    return path


def read(store, path):
    """Brings a LocalStore to what `write` left in `path`. -> (shard, shards)

    Raises:
      UserError: the snapshot is missing, not whole, or of another kind; the message names the file.
    """
    manifest = path_of(path) / _MANIFEST
    try:
        values = json.loads(manifest.read_bytes())
        shard, shards, files = int(values["shard"]), int(values["shards"]), values["files"]
    except OSError as error:
        raise UserError(f"{manifest}: {error.strerror}: expected the directory of a snapshot at exit") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{manifest}: not the manifest of a snapshot at exit: {error}") from None
    store.restore(path, files, shard, shards)
    return shard, shards
