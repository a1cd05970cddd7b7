"""Which checkpoints stay, and which of them have files in common.

Each checkpoint's directory holds all of its chain. Those of one chain have its older files as hard links, so that
removing one checkpoint never takes a file from another, and a damaged file may damage all of the chain. So the chain
before the present one stays as well, and the best checkpoint has files of its own: of no file is there less than one
whole checkpoint that does without.
"""

import contextlib
import logging

from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)


def base_of_next(model_dir, last, full_every):
    """Returns the `Checkpoint` to whose chain the next one adds what changed; None if it is to have all rows.

    Args:
      last: the `Checkpoint` before it, or None.
      full_every: see `RunConfig.full_checkpoint_every`.
    """
    if last is None or last.chain_length >= full_every:
        return None
    if path_of(last.path).parent != path_of(model_dir) / checkpoints.RECENT:
        return None  # The best one's files are its own.
    earlier = [each for each in checkpoints.list_checkpoints(model_dir) if each.base != last.base]
    return last if earlier else None


def extend(path, files, before):
    """Makes the files of a snapshot just written to `path` a whole chain there. -> all files, for `commit`.

    Args:
      files: what `Store.save` returned.
      before: the `Checkpoint` whose rows it was to add to, or None.

    Raises:
      UserError: a file of the chain before is gone; names it.
    """
    if not files or files[0].get("since") is None:
        return files
    for entry in before.tables:
        (path_of(path) / entry["file"]).share(path_of(before.path) / entry["file"])
    return before.tables + files


def remove_old(model_dir, keep):
    """Removes all but the newest `keep` checkpoints and the newest of an earlier chain than the last; 0 keeps all."""
    found = checkpoints.list_checkpoints(model_dir)
    if not keep or not found:
        return
    earlier = [each for each in found if each.base != found[-1].base]
    stay = {each.path for each in [*found[-keep:], *earlier[-1:]]}
    for each in found:
        if each.path not in stay:
            _remove(each.path)


def remove_unfinished(model_dir):
    """Removes what killed processes have left of checkpoints; call it as the one job in the model directory."""
    for path in checkpoints.unfinished(model_dir):
        path_of(path).remove_all()


def set_aside(model_dir, after, why):
    """Renames the checkpoints of steps greater than `after` to `why-step-...`, so that they count no more.

    Training goes on from the step `after`: were they still to count, `remove_old` would keep them in place of those
    that come.

    Args:
      why: `refused` or `set-aside`.
    """
    for path in checkpoints.directories(model_dir):
        if checkpoints.step_of(path) > after:
            there, number = path_of(path), 2
            free = there.with_name(f"{why}-{there.name}")
            while free.exists():
                free, number = there.with_name(f"{why}-{there.name}.{number}"), number + 1
            there.move_to(free, checkpoints.MANIFEST)
            _log.error("the %s checkpoint %s is now %s; remove it when you have looked at it", why, path, free)


def keep_best(model_dir, path):
    """Keeps a copy of the checkpoint in `path` in `MODEL_DIR/best`, whatever becomes of that one and of its files.

    It is the best one once `EvaluationHistory.best` names its step; the one before may go then (`remove_other_bests`).
    A file that the best one before has as well is taken from there, so what is copied is what changed since.

    Raises:
      UserError: a file cannot be copied, or is damaged; names it.
    """
    source = path_of(path)
    kept = path_of(model_dir) / checkpoints.BEST / source.name
    draft = kept.with_name(f"{checkpoints.DRAFT}{kept.name}")
    checkpoints.begin(draft)
    checkpoint = checkpoints.load(path)
    before = {}
    for other in checkpoints.directories(model_dir, checkpoints.BEST):
        with contextlib.suppress(UserError):
            found = checkpoints.load(other)
            before |= {_identity(entry): path_of(other) for entry in (*found.tables, *found.dense)}
    for entry in (*checkpoint.tables, *checkpoint.dense):
        own = before.get(_identity(entry))
        if own and _is_whole(own, entry):
            (draft / entry["file"]).share(own / entry["file"])
        else:
            (draft / entry["file"]).copy_from(source / entry["file"])
            if not _is_whole(draft, entry):
                raise UserError(f"{source / entry['file']}: altered since the checkpoint was written")
    (draft / checkpoints.MANIFEST).copy_from(source / checkpoints.MANIFEST)
    draft.sync()
    kept.remove_all()  # Of this step too, if training went back before it.
    draft.move_to(kept, checkpoints.MANIFEST)
    kept.parent.sync()


def remove_other_bests(model_dir, step):
    """Removes what `keep_best` kept other than the checkpoint of `step`."""
    for path in checkpoints.directories(model_dir, checkpoints.BEST):
        if checkpoints.step_of(path) != step:
            _remove(path)


def _remove(path):
    (path_of(path) / checkpoints.MANIFEST).unlink()  # First, so that a half-removed one does not count.
    path_of(path).remove_all()


def _identity(entry):
    return entry["file"], entry["bytes"], entry["crc32"], entry.get("snapshot")


def _is_whole(path, entry):
    described = checkpoints.describe_file(path, entry["file"])
    return (described["bytes"], described["crc32"]) == (entry["bytes"], entry["crc32"])
