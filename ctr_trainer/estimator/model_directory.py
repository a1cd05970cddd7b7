"""What a model directory holds: its checkpoints as all ranks see them, its features, and the job that has it."""

import contextlib
import dataclasses
import logging
import os

import tensorflow as tf

from ctr_trainer.data.row_order import progress
from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.estimator.checkpoint import BEST, RECENT
from ctr_trainer.estimator.model_selection import EvaluationHistory
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.files import durable_file
from ctr_trainer.files.paths import is_local, path_of
from ctr_trainer.files.staging import held_directory as held
from ctr_trainer.graph_notes.run_length import RunLength
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1
_TENSORFLOW_FILE = "checkpoint"
_log = logging.getLogger(__name__)
_FEATURES = "features.json"
_CURE = "put a copy of this file in its place, or train into another --model_dir"


def newest_checkpoint(model_dir, required=False):
    """Returns rank 0's newest `Checkpoint` that is whole, on every rank; None where there is none. A collective.

    Rank 0 reads all of its files; it logs each checkpoint that it refuses, and why, and takes the one before.

    Raises:
      UserError: it is required and there is none, or there are some and none is whole.
    """
    found = _on_every_rank(lambda: checkpoints.newest_whole(model_dir))
    if found is None and required:
        raise no_checkpoint(model_dir)
    return found


def find_checkpoint(model_dir, which):
    """Returns a `Checkpoint` on every rank. A collective.

    Args:
      which: `latest`, `best` (of a training with `EvalSpec.best_metric`) or a step.

    Raises:
      UserError: it is none of these, there is no such checkpoint, or it is damaged.
    """
    if which == "latest":
        return newest_checkpoint(model_dir, required=True)
    if which == "best":
        return _on_every_rank(lambda: _best(model_dir))
    if not str(which).isdecimal():
        raise UserError(f"--checkpoint={which}: expected latest, best or a step")
    return _on_every_rank(lambda: checkpoints.whole(model_dir, int(which)))


def checkpoint_at(path: str) -> checkpoints.Checkpoint:
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


def checkpoint_at_on_every_rank(path: str) -> checkpoints.Checkpoint:
    """Returns rank 0's `at(path)` on every rank. A collective."""
    return _on_every_rank(lambda: checkpoint_at(path))


def newest_model_record(model_dir):
    """Returns what makes the model of the newest checkpoint that says so, see `ModelRecord`; None. Not a collective."""
    records = [each.model for each in checkpoints.list_checkpoints(model_dir) if each.model]
    return records[-1] if records else None


def no_checkpoint(model_dir):
    """Returns the error that there is none."""
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


def resuming_text(checkpoint, model_dir, workers):
    """Returns what a resumed training logs first: its checkpoint, how far that is, and what has changed since.

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


def starting_text(length: RunLength, epochs: int | None, accumulation_steps: int, workers: int) -> str:
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


def resume_text(model_dir):
    """Returns the sentence that says where the same command resumes. Not a collective."""
    found = checkpoints.latest_checkpoint(model_dir)
    if found is None:
        return f"There is no checkpoint in {model_dir} yet: the same command starts from the beginning"
    return f"The last checkpoint is {found.path}, of step {found.step}: the same command goes on from it"


def point_tensorflow_to(model_dir, checkpoint):
    """Has `tf.train.latest_checkpoint(model_dir)` find the dense variables of a `Checkpoint`; of None, nothing.

    Does nothing for a model directory in a store, where TensorFlow does not look.

    Raises:
      UserError: the file is of another program, whose checkpoints would no longer be found; or cannot be written.
    """
    if not is_local(model_dir):
        return
    path = os.path.join(model_dir, _TENSORFLOW_FILE)
    if os.path.lexists(path):
        _refuse_foreign(path)
    if checkpoint is not None:
        prefix = os.path.relpath(checkpoint.dense_prefix, model_dir)  # So that the directory can be moved.
        state = tf1.train.generate_checkpoint_state_proto(os.path.abspath(model_dir), prefix, [prefix])
        durable_file.write_text(path, str(state))
    elif os.path.lexists(path):
        os.remove(path)


def tensorflow_directory(checkpoint, model_dir):
    """Returns the directory by whose file `checkpoint` TensorFlow finds a `Checkpoint` with local dense variables.

    Args:
      checkpoint: the `Checkpoint` that `point_to` named last, or None.
      model_dir: local directory of the model; of one in a store, a directory without the file.
    """
    if checkpoint is None or is_local(checkpoint.path):
        return model_dir
    tf1.train.update_checkpoint_state(checkpoint.dense_directory, checkpoint.dense_prefix)
    return checkpoint.dense_directory


def _refuse_foreign(path):
    state = tf.train.get_checkpoint_state(os.path.dirname(path))
    own = tuple(os.path.join(os.path.dirname(path), place, "") for place in (RECENT, BEST))
    if state is None or not state.model_checkpoint_path.startswith(own):
        found = f"names {state.model_checkpoint_path}" if state else "is no checkpoint file of TensorFlow"
        raise UserError(
            f"{path} {found}, so another program trains in this directory: name another --model_dir, or move the file"
        )


def features_path(model_dir):
    """Returns the file that has them."""
    return path_of(model_dir) / _FEATURES


def save_features(model_dir, features):
    """Keeps the feature spec and the dense statistics beside the model, for evaluation and export."""
    values = {"spec": features.spec.to_dict(), "statistics": features.statistics}
    features_path(model_dir).write_json(values)


def load_features(model_dir):
    """Returns (FeatureSpec, statistics) of the model in `model_dir`, or None.

    Where their file is gone or damaged, those that the newest checkpoint has as well.

    Raises:
      UserError: the file is empty, was cut off or altered, and no checkpoint has them.
    """
    path = features_path(model_dir)
    try:
        saved = path.read_json(_CURE)
    except UserError as error:
        saved = (newest_model_record(model_dir) or {}).get("features")
        if saved is None and path.exists():
            raise
        if saved is None:
            return None
        _log.warning("%s. The newest checkpoint has a copy, which is used", error)
    try:
        return FeatureSpec.from_dict(saved["spec"], f"{path}: spec"), saved["statistics"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no feature spec and statistics of a model ({error!r}); {_CURE}") from error


@contextlib.contextmanager
def one_job(model_dir):
    """Rank 0 holds the directory within the block; evaluations, predictions and exports do not ask for it.

    Yields:
      of rank 0 the lock, whose `check` raises UserError if it was lost; of others None.

    Raises:
      UserError: another job trains there; names its process, its host and since when.
    """

    def refusal(holder):
        return (
            f"another job ({holder}) trains the model in {model_dir}: wait for its end, end it, or name another "
            "--model_dir"
        )

    with contextlib.ExitStack() as stack:
        yield stack.enter_context(held(model_dir, refusal)) if distributed.is_chief() else None
