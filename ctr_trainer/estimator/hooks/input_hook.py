"""Feeds each step its batch, and looks up and trains the embedding rows of the batch."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.worker_rows import RowStep
from ctr_trainer.estimator.hooks.step_hook import Order
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.graph_notes.notes import RowTraining, notes
from ctr_trainer.system.measuring.clock import Clock


class TrainedRows(Protocol):
    """Looks up and trains embedding rows, such as `Embeddings`; `looked_up` is its `LookedUp`."""

    def look_up(self, lookups: Any, create: bool) -> Any:
        """Returns the `LookedUp` of a batch; with `create`, a key without a row gets one."""

    def add_gradients(self, looked_up: Any, gradients: dict[str, np.ndarray], weight: float = 1.0) -> None:
        """Adds the gradients of a batch's rows to the gradients of the step."""

    def apply_gradients(self, looked_up: Any, gradients: dict[str, np.ndarray], weight: float, step: RowStep) -> None:
        """Adds the gradients, and steps all rows of the step."""


class RowsInTurn:
    """Looks up the rows of a batch before its step and trains them after it, in the thread of the steps.

    Args:
      batches: iterable of (`Batch`, lookups).
      training: whether a key without a row gets one.
    """

    def __init__(self, embeddings: TrainedRows, batches: Iterable[tuple[Any, Any]], training: bool) -> None:
        self._embeddings, self._batches, self._training = embeddings, iter(batches), training

    def read(self) -> tuple[Any, Any]:
        """Returns the next `Batch` and the argument of `look_up`; raises StopIteration at the end."""
        return next(self._batches)

    def look_up(self, lookups: Any) -> Any:
        """Returns the `LookedUp` of the batch."""
        return self._embeddings.look_up(lookups, create=self._training)

    def train(self, call: Callable[..., None], *arguments: Any) -> None:
        """Calls a method of `TrainedRows` that takes gradients, before any later lookup except the next one."""
        call(*arguments)

    def finish_pending(self) -> None:
        """Trains all rows of the steps so far, before a sync or a flush."""

    def close(self) -> None:
        """Ends the background work; also after an error."""


class InputHook(tf1.train.SessionRunHook):
    """Before a step, feeds a batch and the embedding rows of its keys; after the step, applies the rows' gradients.

    If an optimizer step takes several micro-batches, their gradients are summed and applied after the last micro-batch.
    The end of the batches ends the loop of the session; before `restart` there are none.

    Args:
      features: makes the feed of what is no row.
      has_read: f(), called after each batch that is read; None for nothing.

    Attributes:
      training: None to apply no gradients.
      batch: the batch of the current step.
      examples: number of examples that were fed since `restart`.
    """

    phase, order = "feed", Order.INPUT

    def __init__(
        self,
        features: FedFeatures,
        embeddings: TrainedRows,
        training: RowTraining | None = None,
        clock: Clock | None = None,
        has_read: Callable[[], None] | None = None,
    ) -> None:
        self._features, self._embeddings, self.training = features, embeddings, training
        self._rows = RowsInTurn(embeddings, (), training=False)
        self._looked_up: Any = None
        self._has_read = has_read or (lambda: None)
        self._clock = clock or Clock()
        self._rows_of: tuple[str, ...] = ()
        self._fetches: list[tf.Tensor] = []
        self._last_fetches: list[tf.Tensor] = []
        self._micro_batches, self._micro_batch = 1, 0
        self.batch: Any = None
        self.examples = 0

    def restart(self, rows: RowsInTurn) -> None:
        """Feeds the batches of `rows` from now on."""
        self._rows, self._micro_batch, self.examples = rows, 0, 0

    def begin(self) -> None:
        training = self.training
        if training is not None and training.gradients:
            self._micro_batches = notes().step_plan.accumulation_steps
            # Flat lists, the same for each step: the session flattens nested fetches at each run.
            self._rows_of, self._fetches = tuple(training.gradients), list(training.gradients.values())
            self._last_fetches = [*self._fetches, training.learning_rate]
            if training.share is not None:
                self._last_fetches.append(training.share)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        with self._clock.within(self.phase):
            return self._feed()

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._fetches:
            with self._clock.within("update"):
                self._apply(run_values.results)

    def _feed(self) -> tf1.train.SessionRunArgs:
        with self._clock.within("read"):
            self.batch, lookups = self._rows.read()
        self._has_read()
        with self._clock.within("lookup"):
            self._looked_up = self._rows.look_up(lookups)
        feed = self._looked_up.feed | self._features.feed(self.batch)
        self.examples += self.batch.size
        self._micro_batch = self._micro_batch % self._micro_batches + 1
        # The rate and the share belong to the whole step: fetching them with a part of it would exchange that part.
        is_last = self._micro_batch == self._micro_batches
        return tf1.train.SessionRunArgs(self._last_fetches if is_last else self._fetches, feed)

    def _apply(self, results: list[np.ndarray]) -> None:
        weight = 1.0 if self.training is None or self.training.share is None else float(np.sum(self.batch.weights))
        batch = self._looked_up, dict(zip(self._rows_of, results, strict=False)), weight
        if self._micro_batch < self._micro_batches:
            self._rows.train(self._embeddings.add_gradients, *batch)
        else:
            step = RowStep(*map(float, results[len(self._rows_of) :]))
            self._rows.train(self._embeddings.apply_gradients, *batch, step)

    def close(self) -> None:
        """Ends the thread that looks rows up in the background, if there is one."""
        self._rows.close()


class RowPipeline(RowsInTurn):
    """While a step runs, trains the rows of the previous step and then looks up the rows of the next step.

    One thread does both in a fixed order, so a run is as repeatable as without a pipeline:

        thread of the steps:   step t          step t+1          step t+2
        pipeline thread:       train t-1, look up t+1   train t, look up t+2   ...

    Staleness: a step reads rows that lack the update of the previous step, and of no other. Before a sync, a checkpoint
    or an evaluation, all rows are trained, and the batch that was looked up ahead is looked up again. So the rows are
    complete there, and a resumed run continues like a run that was not interrupted.

    Caveat: a new key of the batch that is looked up ahead gets its row at once, so a checkpoint may hold rows that no
    step has trained yet. Not for tables with limits, whose rows may be removed before a step trains them.

    Source: the semi-synchronous training pipelines of TorchRec (`TrainPipelineSemiSync`).
    """

    def __init__(self, embeddings: TrainedRows, batches: Iterable[tuple[Any, Any]]) -> None:
        super().__init__(embeddings, batches, training=True)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "embedding rows")
        self._trainings: collections.deque[concurrent.futures.Future] = collections.deque()
        # (Batch, lookups, Future of LookedUp or None); None before the first batch and after the last.
        self._next: tuple[Any, Any, concurrent.futures.Future | None] | None = None
        self._has_begun = False

    def read(self) -> tuple[Any, Any]:
        if not self._has_begun:
            self._has_begun = True
            self._prepare()
        if self._next is None:
            raise StopIteration
        return self._next[0], self._next

    def look_up(self, prepared: Any) -> Any:
        """Returns the `LookedUp` of the batch, and starts the lookup of the next batch."""
        _, lookups, future = prepared
        looked_up = future.result() if future else self._start(lookups).result()
        while self._trainings and self._trainings[0].done():
            self._trainings.popleft().result()  # Raises the error of the training, if any.
        self._prepare()
        return looked_up

    def train(self, call: Callable[..., None], *arguments: Any) -> None:
        self._trainings.append(self._thread.submit(call, *arguments))

    def finish_pending(self) -> None:
        while self._trainings:
            self._trainings.popleft().result()
        if self._next is not None:
            batch, lookups, future = self._next
            if future is not None:
                future.result()
            self._next = batch, lookups, None

    def close(self) -> None:
        """Waits for the work in progress, and ignores its errors."""
        self._thread.shutdown(cancel_futures=True)

    def _prepare(self) -> None:
        try:
            batch, lookups = next(self._batches)
        except StopIteration:
            self._next = None
        else:
            self._next = batch, lookups, self._start(lookups)

    def _start(self, lookups: Any) -> concurrent.futures.Future:
        return self._thread.submit(self._embeddings.look_up, lookups, create=True)
