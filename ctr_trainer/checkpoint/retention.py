"""Decides which checkpoints are kept and which of them share files.

Each checkpoint directory contains its whole chain. The checkpoints of a chain share its older files as hard links (in a
remote store, each has copies), so removing one checkpoint never removes a file of another. However, a damaged file may
damage every checkpoint of its chain. Therefore the newest checkpoint of the previous chain is kept too, and the best
checkpoint has its own files: whichever file is damaged, one checkpoint does not need it. Rows on disk, see
`snapshot.COLD`, are the exception: all checkpoints share their files.
"""

import contextlib
import logging
import socket
from typing import Any

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.checkpoint import Checkpoint, Entry
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.system.files.paths import MOST_COPIED, Advanced, Path, is_local, path_of
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)


def base_of_next(model_dir: str, last: Checkpoint | None, full_every: int) -> Checkpoint | None:
    """Returns the `Checkpoint` whose chain the checkpoint after `last` extends; None if that one has to be full."""
    if last is None or last.chain_length >= full_every:
        return None
    if path_of(last.path).parent != path_of(model_dir) / checkpoints.RECENT:
        return None  # The best checkpoint shares no files.
    if not is_local(model_dir) and any(each["bytes"] > MOST_COPIED for each in snapshot.rows_files(last.tables)):
        return None  # This process would copy such a file, while shards write theirs concurrently.
    earlier = [each for each in checkpoints.list_checkpoints(model_dir) if each.base != last.base]
    return last if earlier else None


def extend(path: str, files: list[Entry], before: Checkpoint | None) -> list[Entry]:
    """Completes the chain of a snapshot that was just written to `path`. Returns all files, for `commit`.

    `files` is the return value of `Store.save`, called with the snapshot of `before` as `since`.

    Raises UserError: a file of the snapshot or of the earlier chain is not there. The message names the file.
    """
    for entry in files:
        file, size = path_of(path) / entry["file"], 0
        with contextlib.suppress(FileNotFoundError):
            size = file.size()
        if size != entry["bytes"]:
            raise UserError(
                f"{file}: a shard wrote {entry['bytes']} bytes there, and {socket.gethostname()} finds {size}: the "
                "model_dir must be the same directory, under the same path, for rank 0 and all shards"
            )
    if before is None or not files or files[0]["since"] is None:
        return files
    chain = snapshot.rows_files(before.tables)  # The snapshot has all rows on disk.
    for entry in chain:
        (path_of(path) / entry["file"]).share(path_of(before.path) / entry["file"])
    return chain + files


def remove_old(model_dir: str, keep: int) -> None:
    """Removes all checkpoints except the newest `keep` ones and the newest one of an earlier chain. 0 keeps all."""
    found = checkpoints.list_checkpoints(model_dir)
    if not keep or not found:
        return
    earlier = [each for each in found if each.base != found[-1].base]
    stay = {each.path for each in [*found[-keep:], *earlier[-1:]]}
    for each in found:
        if each.path not in stay:
            _remove(each.path)


def remove_unfinished(model_dir: str) -> None:
    """Removes the drafts, and the directories without a manifest, of processes killed while writing or removing them.

    The caller must hold the model directory's lock.
    """
    for root in (path_of(model_dir) / place for place in (checkpoints.RECENT, checkpoints.BEST)):
        for path in [*root.iterdir()] if root.is_dir() else ():
            draft, name = path.name.startswith(checkpoints.DRAFT), path.name.removeprefix(checkpoints.DRAFT)
            if checkpoints.DIRECTORY.fullmatch(name) and path.is_dir():
                if draft or not (path / checkpoints.MANIFEST).exists():
                    path.remove_all()


def set_aside(model_dir: str, after: int, why: str) -> None:
    """Renames the checkpoints of steps greater than `after` to `why-step-...`, so that they are no longer used.

    Otherwise `remove_old` would keep them instead of the new checkpoints of a training that resumes from `after`.
    """
    for path in checkpoints.directories(model_dir):
        if checkpoints.step_of(path) > after:
            there, number = path_of(path), 2
            free = there.with_name(f"{why}-{there.name}")
            while free.exists():
                free, number = there.with_name(f"{why}-{there.name}.{number}"), number + 1
            there.move_to(free, checkpoints.MANIFEST)
            _log.error("the %s checkpoint %s is now %s; remove it when you have looked at it", why, path, free)


def keep_best(model_dir: str, path: str, advanced: Advanced = lambda text: None) -> None:
    """Copies the checkpoint in `path` to `MODEL_DIR/best`, so that it survives the removal of the original.

    The copy becomes the best checkpoint when `EvaluationHistory.best` names its step. After that, `remove_other_bests`
    may remove the previous one. Files that the previous best checkpoint also has are shared with it, not copied.
    Calls `advanced` with a text after each block.

    Raises UserError: a file is damaged or cannot be copied. The message names the file.
    """
    source = path_of(path)
    kept = path_of(model_dir) / checkpoints.BEST / source.name
    draft = kept.with_name(f"{checkpoints.DRAFT}{kept.name}")
    checkpoints.begin(draft)
    checkpoint = checkpoints.load(path)
    before: dict[tuple[Any, ...], Path] = {}
    for other in checkpoints.directories(model_dir, checkpoints.BEST):
        with contextlib.suppress(UserError):
            found = checkpoints.load(other)
            before |= {_identity(entry): path_of(other) for entry in (*found.tables, *found.dense)}
    for entry in (*checkpoint.tables, *checkpoint.dense):
        own = before.get(_identity(entry))
        if entry.get("kind") == snapshot.COLD:
            (draft / entry["file"]).share(source / entry["file"], advanced)  # They are too large for a copy.
        elif own and checkpoints.describe_file(own, entry["file"], advanced).items() <= entry.items():
            (draft / entry["file"]).share(own / entry["file"], advanced)
        else:
            (draft / entry["file"]).copy_from(source / entry["file"], advanced)
            if not checkpoints.describe_file(draft, entry["file"], advanced).items() <= entry.items():
                raise UserError(f"{source / entry['file']}: altered since the checkpoint was written")
    (draft / checkpoints.MANIFEST).copy_from(source / checkpoints.MANIFEST)
    draft.sync()
    kept.remove_all()  # It exists if training resumed from an earlier step and reached this step again.
    draft.move_to(kept, checkpoints.MANIFEST, advanced)
    kept.parent.sync()


def remove_other_bests(model_dir: str, step: int) -> None:
    """Removes all checkpoints that `keep_best` has kept, except the one of `step`."""
    for path in checkpoints.directories(model_dir, checkpoints.BEST):
        if checkpoints.step_of(path) != step:
            _remove(path)


def _remove(path: str) -> None:
    (path_of(path) / checkpoints.MANIFEST).unlink()  # First, so that a partly removed checkpoint is not used.
    path_of(path).remove_all()


def _identity(entry: Entry) -> tuple[Any, ...]:
    return entry["file"], entry["bytes"], entry["crc32"], entry.get("snapshot")
