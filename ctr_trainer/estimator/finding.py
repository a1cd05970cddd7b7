"""Finds checkpoints: rank 0 looks, all ranks get what it found."""

import dataclasses

from ctr_trainer.data.position import progress
from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.estimator.evaluation_history import EvaluationHistory
from ctr_trainer.files.paths import path_of
from ctr_trainer.graph_notes.run_length import RunLength
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed


def latest(model_dir, required=False):
    """-> rank 0's newest `Checkpoint` that is whole, on every rank; None where there is none. A collective.

    Rank 0 reads all of its files; it logs each checkpoint that it refuses, and why, and takes the one before.

    Raises:
      UserError: it is required and there is none, or there are some and none is whole.
    """
    found = _on_every_rank(lambda: checkpoints.newest_whole(model_dir))
    if found is None and required:
        raise no_checkpoint(model_dir)
    return found


def find(model_dir, which):
    """-> a `Checkpoint` on every rank. A collective.

    Args:
      which: `latest`, `best` (of a training with `EvalSpec.best_metric`) or a step.

    Raises:
      UserError: it is none of these, there is no such checkpoint, or it is damaged.
    """
    if which == "latest":
        return latest(model_dir, required=True)
    if which == "best":
        return _on_every_rank(lambda: _best(model_dir))
    if not str(which).isdecimal():
        raise UserError(f"--checkpoint={which}: expected latest, best or a step")
    return _on_every_rank(lambda: checkpoints.whole(model_dir, int(which)))


def at(path: str) -> checkpoints.Checkpoint:
    """Returns the `Checkpoint` at a path, this rank's. Not a collective.

    Args:
      path: its directory, or what TensorFlow's Saver calls it, as `tf.train.latest_checkpoint(model_dir)` returns it.

    Raises:
      UserError: there is none, or it is damaged.
    """
    for place in (path_of(path), path_of(path).parent):
        if (place / checkpoints.MANIFEST).exists():
            found = checkpoints.load(str(place))
            found.verify()
            return found
    raise UserError(
        f"checkpoint_path={path}: there is no checkpoint of this package; give the path of one, "
        "MODEL_DIR/checkpoints/step-0000001000, or leave it out for the newest"
    )


def at_on_every_rank(path: str) -> checkpoints.Checkpoint:
    """Returns rank 0's `at(path)` on every rank. A collective."""
    return _on_every_rank(lambda: at(path))


def newest_record(model_dir):
    """-> what makes the model of the newest checkpoint that says so, see `ModelRecord`; None. Not a collective."""
    records = [each.model for each in checkpoints.list_checkpoints(model_dir) if each.model]
    return records[-1] if records else None


def no_checkpoint(model_dir):
    """-> the error that there is none."""
    return UserError(f"there is no checkpoint in {model_dir}; train first, with this --model_dir")


def _best(model_dir):
    best = EvaluationHistory.load(model_dir).best
    if best is None:
        raise UserError(f"no best checkpoint was kept in {model_dir}: train with --eval_steps and --best_metric")
    return checkpoints.whole(model_dir, best["step"], (checkpoints.BEST, checkpoints.RECENT))


def _on_every_rank(look):
    found = look() if distributed.is_chief() else None
    values = distributed.broadcast_object(dataclasses.asdict(found) if found else None, "checkpoint")
    return checkpoints.Checkpoint(**values) if values else None


def going_on(checkpoint, model_dir, workers):
    """-> what a training that goes on says first: from where, how far that is, and what is another than then.

    Args:
      checkpoint: the `Checkpoint` that it goes on from.
      workers: how many there are now.
    """
    said = [f"going on from {checkpoint.path}: step {checkpoint.step}"]
    known = progress(checkpoint.position)
    if known:
        said.append(f"epoch {known[0]:.1f}")
    best = EvaluationHistory.load(model_dir).best
    if best is not None:
        said.append(f"best {best['metric']} so far {best['value']:.4f} at step {best['step']}")
    said.append(f"{workers} worker{'s' * (workers > 1)} now" + (f", {known[1]} then" if known else ""))
    return ", ".join(said)


def starting(length: RunLength, epochs: int | None, accumulation_steps: int, workers: int) -> str:
    """Returns what a training without a checkpoint says first: that it starts from step 0, and how much it reads.

    Args:
      length: `RunLength` of the training.
      epochs: number of the epochs that it reads; None if the input does not say.
      accumulation_steps: batches of an optimizer step.
      workers: number of the workers.
    """
    said, end = [], length.end(accumulation_steps)
    if length.epochs is not None and length.epochs.rows is not None:
        said.append(f"{length.epochs.rows:,} rows an epoch")
    if epochs:
        said.append(f"{epochs} epoch{'s' * (epochs > 1)}")
    if end is not None:
        said.append(f"{end:,} steps")
    said.append(f"{workers} worker{'s' * (workers > 1)}")
    return f"starting from step 0: {', '.join(said)}"


def where_it_goes_on(model_dir):
    """-> a sentence for who starts the same command again. Not a collective."""
    found = checkpoints.latest_checkpoint(model_dir)
    if found is None:
        return f"There is no checkpoint in {model_dir} yet: the same command starts from the beginning"
    return f"The last checkpoint is {found.path}, of step {found.step}: the same command goes on from it"
