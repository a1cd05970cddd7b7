"""The base class of hooks that act after a step, and the hooks that end a training with wrong batches or losses."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError, diverged

_STEPS = 3
_NONE = -1  # Stands for a batch that is only padding.


class StepHook(tf1.train.SessionRunHook):
    """Base class of hooks that act after a step. Hooks observe a training: they change no rows and no variables.

    It counts steps itself, because a global step that is fetched together with the operation that increments it may
    have the old or the new value.

    Subclasses define `after_step(run_context, run_values)`, in which `self.step` is the number of the step whose run
    has just ended; its rows are trained afterwards. A step is an optimizer step. If it has several micro-batches,
    `after_micro_batch` is called for all but the last, and `after_step` for the last. `before_run` is called for each
    micro-batch.
    """

    def __init__(self) -> None:
        self.step = 0

    def begin(self) -> None:
        self._global_step = tf1.train.get_or_create_global_step()

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        fetches = run_context.original_args.fetches
        if isinstance(fetches, dict) and "accumulate" in fetches:  # See `TrainingSteps.train_step`.
            self.after_micro_batch(run_context, run_values)
            return
        self.step += 1
        self.after_step(run_context, run_values)

    def after_micro_batch(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        """Called after each micro-batch of a step except the last one. Does nothing by default."""

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        """Called after each step."""
        raise NotImplementedError(f"{type(self).__name__} must define after_step")


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
        super().__init__()
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
        super().__init__()
        self._arguments = tf1.train.SessionRunArgs(loss)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return self._arguments

    def after_micro_batch(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        self._check(run_values.results, self.step + 1)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._check(run_values.results, self.step)

    def _check(self, loss: np.ndarray, step: int) -> None:
        if not np.isfinite(loss).all():
            raise diverged(f"the loss of step {step} is {loss} on rank {distributed.rank()}")
