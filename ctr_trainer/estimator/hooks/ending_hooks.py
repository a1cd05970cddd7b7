"""The base class of hooks, and the checks that end a training: of its batches, its loss, and its variables."""

import logging
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError, diverged

_STEPS = 3
_NONE = -1  # Stands for a batch that is only padding.
_log = logging.getLogger(__name__)
# Largest allowed difference of a variable between ranks, relative to its largest value, after the first step and later.
# Types of processors round differently.
_FIRST_ROUNDING, _ROUNDING = 1e-6, 1e-4
_NAMED = 5


class StepHook(tf1.train.SessionRunHook):
    """Base class of hooks that act after a step. Hooks observe a training: they change no rows and no variables.

    It counts steps itself, because a global step that is fetched together with the operation that increments it may
    have the old or the new value.

    Subclasses define `after_step(run_context, run_values)`, in which `self.step` is the number of the step whose run
    has just ended; its rows are trained afterwards. A step is an optimizer step. If it has several micro-batches,
    `before_run` and `after_batch` are called for each of them, and `after_step` after the last.
    """

    step = 0

    def begin(self) -> None:
        self._global_step = tf1.train.get_or_create_global_step()

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.after_batch(run_context, run_values)
        fetches = run_context.original_args.fetches
        if not (isinstance(fetches, dict) and "accumulate" in fetches):  # See `TrainingSteps.train_step`.
            self.step += 1
            self.after_step(run_context, run_values)

    def after_batch(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        """Called after the run of each batch of a step, when `self.step` is still the previous step."""

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        """Called after each step."""


class EqualBatchesHook(StepHook):
    """Compares the ranks' batches of the first steps, before the first checkpoint is written.

    An `input_fn` that does not take a share of the data gives all ranks the same batches. The job would train each
    example as many times as there are ranks.

    Args:
      features, labels: tensors of the batch.
      weight: scalar tensor, 0 for a batch that is only padding; None if no batch is.

    Raises:
      UserError: two ranks had the same batch in each of the first 3 steps, or in all steps if there were fewer.
    """

    def __init__(self, features: Any, labels: Any, weight: tf.Tensor | None = None) -> None:
        tensors = tf.nest.flatten((features, labels), expand_composites=True)
        self._tensors = [tensor for tensor in tensors if tensor is not None]
        self._weight = weight
        self._found: list[int] = []

    def begin(self) -> None:
        super().begin()
        with tf.device("/cpu:0"):
            text = tf.strings.join([tf.io.serialize_tensor(tensor) for tensor in self._tensors])
            self._fingerprint = tf.strings.to_hash_bucket_fast(text, 2**62)
            if self._weight is not None:
                self._fingerprint = tf.where(self._weight > 0, self._fingerprint, tf.constant(_NONE, tf.int64))

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return tf1.train.SessionRunArgs(self._fingerprint) if len(self._found) < _STEPS else None

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if len(self._found) < _STEPS:
            self._found.append(run_values.results)
            if len(self._found) == _STEPS:
                self._compare()

    def finish(self) -> None:
        """Compares the batches of a run of fewer steps. A collective."""
        if 0 < len(self._found) < _STEPS:
            self._compare()

    def _compare(self) -> None:
        """Raises UserError if two ranks have read the same batches. A collective."""
        own = np.array(self._found, np.int64)
        of_ranks = distributed.all_gather(own, "first_batches").reshape(distributed.size(), -1).tolist()
        for rank, batches in enumerate(of_ranks):
            equal = [other for other in range(rank) if of_ranks[other] == batches and set(batches) != {_NONE}]
            if equal:
                raise UserError(
                    f"ranks {equal[0]} and {rank} read the same batches (the first {len(batches)} are equal), so the "
                    f"{distributed.size()} workers would train each example several times. Give each rank its share, "
                    "before the dataset is shuffled and batched: dataset = dataset.shard(tf_estimator.size(), "
                    "tf_estimator.rank()), with `from ctr_trainer import estimator as tf_estimator`; or declare "
                    "input_fn(input_context) and shard by it. If equal batches are intended: "
                    "RunConfig(equal_inputs='allow')"
                )


class FiniteLossHook(StepHook):
    """Raises UserError after a step whose loss, a float tensor, is infinite or NaN on this worker."""

    def __init__(self, loss: tf.Tensor) -> None:
        self._arguments = tf1.train.SessionRunArgs(loss)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return self._arguments

    def after_batch(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if not np.isfinite(loss := run_values.results).all():
            raise diverged(f"the loss of step {self.step + 1} is {loss} on rank {distributed.rank()}")


class EqualVariables:
    """Compares the trainable variables of the current graph across all ranks. With one worker, does nothing.

    The ranks exchange a checksum of each variable, 8 bytes, and compare value by value only variables whose checksums
    differ.
    """

    def __init__(self) -> None:
        several = distributed.size() > 1
        found = [v for v in tf1.trainable_variables() if several and v.dtype.base_dtype.is_floating]
        self._variables = {variable.op.name: variable for variable in found}
        self._has_warned = False

    def check(self, session: tf1.Session, step: int, is_first: bool = False) -> None:
        """Checks that the variables are equal on all ranks, apart from rounding. A collective.

        Args:
          is_first: whether only one step was made since rank 0 broadcast its variables.

        Raises:
          UserError: some variables differ. The message names up to five of them.
        """
        if not self._variables:
            return
        own = session.run(self._variables)
        sums = np.array([zlib.crc32(value.tobytes()) for value in own.values()], np.int64)
        of_ranks = distributed.all_gather(sums, "dense_checksums").reshape(distributed.size(), -1)
        names = [name for name, each in zip(own, of_ranks.T, strict=True) if len(set(each)) > 1]
        if names:
            self._compare({name: own[name] for name in names}, step, _FIRST_ROUNDING if is_first else _ROUNDING)

    def _compare(self, own: dict[str, np.ndarray], step: int, rounding: float) -> None:
        of_rank_0 = distributed.broadcast_arrays([*own.values()], "dense_variables_of_rank_0")
        apart = np.array([_apart(*pair) for pair in zip(own.values(), of_rank_0, strict=True)])
        most = distributed.all_gather(apart, "dense_differences").reshape(distributed.size(), -1).max(axis=0)
        found = [(name, part) for name, part in zip(own, most, strict=True) if part > rounding]
        if found:
            named = ", ".join(f"{name} (by {part:.2g} of its largest value)" for name, part in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise UserError(
                f"the workers no longer train one model: at step {step} these variables differ between the "
                f"{distributed.size()} ranks: {named}{more}. Something updates them outside the exchange of gradients: "
                "wrap every optimizer that updates them, tf_estimator.DistributedOptimizer(optimizer).minimize(loss, "
                "global_step), or give the one optimizer of all variables in place of the train_op, "
                "EstimatorSpec(mode, loss=loss, optimizer=optimizer), and have hooks do the same on all ranks"
            )
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "at step %d %s differs between the ranks by %.2g of its largest value, as rounding makes it",
                step,
                [*own][int(most.argmax())],
                most.max(),
            )


def _apart(own: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference relative to the largest value; 0 if a value is not finite, see other checks."""
    own, other = own.astype(np.float64), other.astype(np.float64)
    if not (own.size and np.isfinite(own).all() and np.isfinite(other).all()):
        return 0.0
    return float(np.abs(own - other).max() / max(np.abs(other).max(), np.abs(own).max(), np.finfo(np.float64).tiny))
