"""A model directory: its checkpoints, on which all ranks agree, its features, and the lock of the job that trains."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.checkpoint import BEST, RECENT, Checkpoint
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.data.row_order import progress
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.features.columns import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import Features
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Advanced, Path, PathLease, is_local, path_of
from ctr_trainer.system.files.staging import held_directory
from ctr_trainer.system.messages.errors import UserError

_TENSORFLOW_FILE = "checkpoint"
_log = logging.getLogger(__name__)
_FEATURES = "features.json"
TrainedFeatures = tuple[FeatureSpec, Statistics | None]
Found = TypeVar("Found", bound=Checkpoint | None)
AUTO, LATEST = "auto", "latest"  # With `BEST`, the names of checkpoints.
_CURE = "put a copy of this file in its place, or train into another model_dir"
_NAMED = 3


def find_checkpoint(model_dir: str, which: str) -> Checkpoint:
    """Returns the result of `Estimator.find_checkpoint` on every rank; logs its step and why it was chosen."""
    if which not in (AUTO, LATEST, BEST) and not which.isdecimal():
        raise UserError(f"checkpoint={which}: expected auto, latest, best or a step")
    return on_every_rank(lambda advanced: _chosen(model_dir, which, advanced))


def chosen_checkpoint(model_dir: str, path: str | None = None, advanced: Advanced = lambda text: None) -> Checkpoint:
    """Returns the `Checkpoint` at a path, or the newest one of a model directory. Not a collective.

    `path`: a `Checkpoint`, which is not read again; its directory; its name for TensorFlow's Saver, as
    `tf.train.latest_checkpoint(model_dir)` returns it; or None for the newest.

    Raises UserError: there is no checkpoint, or it is damaged.
    """
    if isinstance(path, Checkpoint):
        return path
    if path is None:
        if newest := checkpoints.newest_whole(model_dir, advanced):
            return newest
        raise UserError(f"there is no checkpoint in {model_dir}; train first, with this model_dir")
    for place in (path_of(path), path_of(path).parent):
        if (place / checkpoints.MANIFEST).exists():
            return checkpoints.load_whole(str(place), advanced)
    raise UserError(
        f"checkpoint_path={path}: there is no checkpoint of this package; give the path of one, "
        "MODEL_DIR/checkpoints/step-0000001000, or leave it out for the newest"
    )


def trained_tables(checkpoint: Checkpoint) -> dict[str, TableConfig]:
    """Returns a dict of table name -> the `TableConfig` with which it was trained, without limits."""
    configs = checkpoint.table_configs() if distributed.is_chief() else {}
    values = {name: config.to_dict() for name, config in configs.items()}
    values = distributed.broadcast_object(values, "trained_tables")
    # Training decided which keys have rows. An evaluation neither creates nor removes rows.
    return {name: TableConfig.from_dict(each).without_limits() for name, each in values.items()}


def newest_model_record(model_dir: str) -> dict[str, Any] | None:
    """Returns `Checkpoint.model` of the newest checkpoint, or None. Not a collective."""
    for place in (RECENT, BEST):
        if found := checkpoints.list_checkpoints(model_dir, place):
            return found[-1].model
    return None


def _chosen(model_dir: str, which: str, advanced: Advanced) -> Checkpoint:
    """Returns the checkpoint that `which` names, and logs its step and why it was chosen. Not a collective."""
    best = EvaluationHistory.load(model_dir).best
    newest = checkpoints.latest_checkpoint(model_dir)
    is_current = best is not None and best["step"] > (newest.data_begin if newest else 0)
    kept = {checkpoints.step_of(path) for place in (RECENT, BEST) for path in checkpoints.directories(model_dir, place)}
    said = f"the best by {best['metric']} ({best['value']:.6g})" if best else ""
    if which.isdecimal():
        found = checkpoints.whole(model_dir, int(which), advanced=advanced)
        why = f"as asked; the newest is of step {max(kept)}"
    elif best and (which == BEST or (which == AUTO and is_current and best["step"] in kept)):
        found = checkpoints.whole(model_dir, best["step"], (BEST, RECENT), advanced)
        why = f"{said}; the newest is of step {max(kept)}"
    elif which == BEST:
        raise UserError(f"no best checkpoint was kept in {model_dir}: train with evaluations and best_metric")
    else:
        found, why = chosen_checkpoint(model_dir, advanced=advanced), "the newest"
        why += f"; {said} was of step {best['step']}" if best else ""
        if best and not (is_current and best["step"] in kept):
            why += ", which is no longer there" if is_current else ", before the current data"
    _log.info("using the checkpoint of step %d of %s: %s", found.step, model_dir, why)
    return found


def on_every_rank(look: Callable[[Advanced], Found]) -> Found:
    """Returns on every rank what `look(advanced)` finds on rank 0, see `distributed.from_chief`. A collective."""

    def work(advanced: Advanced) -> dict[str, Any] | None:
        found: Checkpoint | None = look(advanced)
        return dataclasses.asdict(found) if found else None

    values = distributed.from_chief(work, "checkpoint")
    return cast(Found, Checkpoint(**values) if values else None)  # The checkpoint that rank 0 found.


def resuming_text(checkpoint: Checkpoint, model_dir: str, workers: int, position: Any) -> str:
    """Returns the first log line of a resumed training: the checkpoint, epoch, best value and number of workers.

    `position` is where its input resumes; None for the beginning.
    """
    said = [f"resuming from {checkpoint.path}: step {checkpoint.step}"]
    known = progress(position)
    if known:
        said.append(f"epoch {known[0]:.1f}")
    elif progress(checkpoint.position):
        said.append("with the next data, from its beginning")
    best = EvaluationHistory.load(model_dir).best
    if best is not None:
        said.append(f"best {best['metric']} so far {best['value']:.4f} at step {best['step']}")
    said.append(f"{workers} worker{'s' * (workers > 1)} now" + (f", {known[1]} then" if known else ""))
    return ", ".join(said)


def resume_text(model_dir: str) -> str:
    """Returns a log sentence that says where the same command resumes. Not a collective."""
    if found := checkpoints.latest_checkpoint(model_dir):
        return f"The last checkpoint is {found}, of step {found.step}: the same command resumes from it"
    return f"There is no checkpoint in {model_dir} yet: the same command starts from the beginning"


def point_tensorflow_to(model_dir: str, checkpoint: Checkpoint | None) -> None:
    """Makes `tf.train.latest_checkpoint(model_dir)` return the dense variables of a `Checkpoint`.

    If `checkpoint` is None, TensorFlow finds no checkpoint. Does nothing for a model directory in a remote store, where
    TensorFlow does not look.

    Raises UserError: TensorFlow's file belongs to another program, or cannot be written.
    """
    if not is_local(model_dir):
        return
    path = os.path.join(model_dir, _TENSORFLOW_FILE)
    if os.path.lexists(path):
        state = tf.train.get_checkpoint_state(model_dir)
        own = tuple(os.path.join(model_dir, place, "") for place in (RECENT, BEST))
        if state is None or not state.model_checkpoint_path.startswith(own):
            found = f"names {state.model_checkpoint_path}" if state else "is not a checkpoint file of TensorFlow"
            raise UserError(
                f"{path} {found}, so another program trains in this directory: name another model_dir, or move the file"
            )
    if checkpoint is not None:
        prefix = os.path.relpath(checkpoint.dense_prefix, model_dir)  # Relative: the directory can be moved.
        state = tf1.train.generate_checkpoint_state_proto(os.path.abspath(model_dir), prefix, [prefix])
        LocalPath(path).write_text(str(state))
    elif os.path.lexists(path):
        os.remove(path)


def tensorflow_directory(checkpoint: Checkpoint | None, model_dir: str) -> str:
    """Returns the directory in which TensorFlow finds a `Checkpoint` with local dense variables.

    `model_dir`: local directory of the model; for a model in a remote store, a directory without TensorFlow's file.
    """
    if checkpoint is None or is_local(checkpoint.path):
        return model_dir
    assert checkpoint.dense_directory is not None  # The dense variables are local, see `Checkpoint.with_local_dense`.
    tf1.train.update_checkpoint_state(checkpoint.dense_directory, checkpoint.dense_prefix)
    return checkpoint.dense_directory


def features_path(model_dir: str) -> Path:
    """Returns the file of the feature spec and the statistics."""
    return path_of(model_dir) / _FEATURES


def save_features(model_dir: str, features: Features) -> None:
    """Writes the feature spec, its files and the statistics to the model directory, for evaluation and export."""
    for each in features.spec.files:
        each.copy_to(path_of(model_dir))
    features_path(model_dir).write_json({"spec": features.spec.to_dict(), "statistics": features.statistics})


def has_checkpoints(model_dir: str) -> bool:
    """Returns whether there are checkpoints, damaged ones included. Reads only names."""
    return any(checkpoints.directories(model_dir, place) for place in (RECENT, BEST))


def remove_lost_features(model_dir: str) -> None:
    """Removes the features of a training that was lost before its first checkpoint. Hold the lock of `one_job`."""
    path = features_path(model_dir)
    if has_checkpoints(model_dir) or not path.exists():
        return
    with contextlib.suppress(UserError):  # Another program's file of this name is left.
        saved = path.read_json(_CURE)
        if isinstance(saved, dict) and {"spec", "statistics"} <= saved.keys():
            path.unlink(missing_ok=True)


def trained_features(model_dir: str) -> TrainedFeatures:
    """Returns `load_features`; raises UserError if the model has none."""
    if (found := load_features(model_dir)) is None:
        raise UserError(f"{model_dir}: the model has no feature spec, so the keys of its values are not known")
    return found


def load_features(model_dir: str) -> TrainedFeatures | None:
    """Returns (FeatureSpec, statistics) of the model in `model_dir`, or None.

    If their file is missing or damaged, reads the copy in the newest checkpoint.

    Raises UserError: the file is empty, truncated or altered, and no checkpoint has a copy.
    """
    path = features_path(model_dir)
    saved: dict[str, Any] | None
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
        spec = FeatureSpec.from_dict(saved["spec"], f"{path}: spec").in_directory(path_of(model_dir))
        return spec, saved["statistics"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no feature spec and statistics of a model ({error!r}); {_CURE}") from error


def one_job(model_dir: str) -> contextlib.AbstractContextManager[PathLease | None]:
    """Locks the directory while the block trains a model there. Evaluations, predictions and exports need no lock.

    Returns a context manager that yields the lock on rank 0, whose `check` raises UserError if the lock was lost, and
    None on other ranks.

    Raises UserError: another job trains there. The message names that job's process, host and start time.
    """

    def refusal(holder: str) -> str:
        return (
            f"another job ({holder}) trains the model in {model_dir}: wait until it ends, stop it, or name "
            "another model_dir"
        )

    return held_directory(model_dir, refusal) if distributed.is_chief() else contextlib.nullcontext()


@contextlib.contextmanager
def refusing_other_variables(checkpoint: Checkpoint | None, variables: Iterable[tf.Variable]) -> Iterator[None]:
    """Replaces TensorFlow's errors within the block, which restores a graph's variables, with a message for users.

    TensorFlow's own error for a missing variable is long, and TensorFlow accepts a variable with a different shape.

    Raises UserError: the checkpoint lacks variables, or has variables with different shapes; the message names them.
    """
    if checkpoint is None:
        yield
        return
    shapes = tf.train.load_checkpoint(checkpoint.dense_prefix).get_variable_to_shape_map()
    own = {v.op.name: v.shape.as_list() for v in variables if v.shape.is_fully_defined()}
    other = {name: shape for name, shape in own.items() if shapes.get(name) != shape}
    reshaped = [f"{name} {shape} (there {shapes[name]})" for name, shape in other.items() if name in shapes]
    missing = [f"{name} {shape} (not there)" for name, shape in other.items() if name not in shapes]
    first = ", ".join([*reshaped, *missing][:_NAMED])
    more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
    refusal = UserError(
        f"{checkpoint.path} is of another model: this one has the variables {first}{more}. Give the settings that it "
        "was trained with, or name another model_dir"
    )
    if reshaped:
        raise refusal
    try:
        yield
    except tf.errors.NotFoundError:
        if not missing:
            raise
        raise refusal from None
