"""Hooks that end a training: in an orderly way, or because its batches or its loss are wrong."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.step_hook import Order, StepHook
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.endings import report, stop_signals
from ctr_trainer.ranks.notices import Notices
from ctr_trainer.ranks.stopping import Stopping
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError, diverged

_STEPS = 3
_NONE = -1  # Stands for a batch that is only padding.
_TRAININGS = itertools.count()  # Numbers the trainings of this process, equally on all ranks.


class EndTogetherHook(tf1.train.SessionRunHook):
    """Stops all ranks after the same step, the first one after which no rank has another batch.

    Args:
      next_total: scalar tensor, equal on all ranks: the number of ranks that have another batch.
    """

    order = Order.INPUT

    def __init__(self, next_total: tf.Tensor) -> None:
        self._next_total = next_total

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return tf1.train.SessionRunArgs(self._next_total)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if run_values.results == 0:
            run_context.request_stop()


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

    order = Order.CHECK

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

    def end(self, session: tf1.Session) -> None:
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

    order = Order.CHECK

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


class StopHook(StepHook):
    """Stops all ranks after the same step if one of them receives SIGTERM or SIGINT. Then the checkpoint is saved.

    The first signal during the session requests this stop. Before and after the session, a signal ends the process at
    once. The constructor is a collective.

    Args:
      grace_secs: seconds after which the process ends in any case.
      path: f() -> path of the last checkpoint.

    Attributes:
      signal: number of the signal that stops the training, set after the last step; 0 for none. The same on all ranks.
      error: the `StoppedInOrder` that ends the training after the checkpoint was saved; None before.
    """

    order = Order.STOP

    def __init__(self, grace_secs: float, path: Callable[[], str | None]) -> None:
        super().__init__()
        rank, size = distributed.rank(), distributed.size()

        def all_sum(told: np.ndarray) -> np.ndarray:
            return distributed.all_sum(told, "stopping", watched=False)

        all_sum(np.zeros((2, size), np.int64))  # Creates the graph and session of this collective before the steps.
        notices, self._words, self._path = Notices.of_this_job(), report.running(), path
        # Without horovodrun, a rank cannot notify the other ranks.
        self._grace_secs = grace_secs if size == 1 or notices.address else 0.0
        name, is_lost = str(next(_TRAININGS)), self._words.is_one_lost
        self._stopping = Stopping(rank, size, name, notices, all_sum, distributed.watchdog(), is_lost)
        self.signal = 0
        self.error: StoppedInOrder | None = None

    @property
    def is_asked(self) -> bool:
        """Whether this rank knows that the training has to stop. Other ranks may learn of it a moment later."""
        return self._stopping.is_asked

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._stopping.begin(self.step + 1)
        self._words.signals.hand_to(self._stopping, self._grace_secs)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._stopping.done(self.step):
            self.signal = self._stopping.signal
            run_context.request_stop()

    def end(self, session: tf1.Session) -> None:
        self.signal = self._stopping.leave()  # Also if the training has made its last step in the meantime.
        if self.signal:
            self.error = StoppedInOrder(self._text(), self.signal)
            self._words.stops_in_order(self.error)  # Before a signal would end the process.
        self._words.signals.keep()

    def close(self) -> None:
        """Reverses `after_create_session`. Also called after an error."""
        self._stopping.close()
        self._words.signals.keep()

    def _text(self) -> str:
        """Returns the last log line of the training."""
        asked = self._stopping.asked
        whom = "" if len(asked) == distributed.size() else f" to rank {', '.join(map(str, asked))}"
        return (
            f"stopped by {stop_signals.name_of(self.signal)}{whom} after step {self.step}; the checkpoint "
            f"{self._path()} is saved: the same command resumes from there"
        )
