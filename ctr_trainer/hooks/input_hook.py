"""Feeds each step its batch, and looks up and trains the embedding rows of the batch."""

import collections
import concurrent.futures

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.worker.row_step import RowStep
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.hooks.step_hook import Order
from ctr_trainer.measuring.clock import Clock

tf1 = tf.compat.v1


class InputHook(tf1.train.SessionRunHook):
    """Before a step, feeds a batch and the embedding rows it looks up; after it, applies the rows' gradients at once.

    Where an optimizer step takes several micro-batches, their gradients are summed and applied after the last.

    The end of the batches ends the session's loop.

    Args:
      features: `FedFeatures`.
      embeddings: `Embeddings`.
      rows: `RowsInTurn` or `RowPipeline`, of `Embeddings.feed`.
      training: `RowTraining`; None to apply no gradients.
      clock: `Clock` of this thread; None where nobody looks at it.
      has_read: f(), called after each batch that is read; None for nothing.

    Attributes:
      batch: the batch of the step now running.
      examples: how many examples were fed so far.
    """

    phase, order = "feed", Order.INPUT

    def __init__(self, features, embeddings, rows, training=None, clock=None, has_read=None):
        self._features, self._embeddings, self._training, self._rows = features, embeddings, training, rows
        self._looked_up, self._has_read = None, has_read or (lambda: None)
        self._clock = clock or Clock()
        self._rows_of, self._fetches, self._last_fetches = (), [], []
        self._micro_batches, self._micro_batch = 1, 0
        self.batch = None
        self.examples = 0

    def begin(self):
        training = self._training
        if training is not None and training.gradients:
            self._micro_batches = notes().step_plan.accumulation_steps
            # Flat lists, the same for each step: the session takes nested fetches apart anew at each run.
            self._rows_of, self._fetches = tuple(training.gradients), list(training.gradients.values())
            self._last_fetches = [*self._fetches, training.learning_rate]
            if training.share is not None:
                self._last_fetches.append(training.share)

    def before_run(self, run_context):
        with self._clock.within(self.phase):
            return self._feed()

    def after_run(self, run_context, run_values):
        if self._fetches:
            with self._clock.within("update"):
                self._apply(run_values.results)

    def _feed(self):
        """-> the SessionRunArgs of the next batch."""
        with self._clock.within("read"):
            self.batch, lookups = self._rows.read()
        self._has_read()
        with self._clock.within("lookup"):
            self._looked_up = self._rows.look_up(lookups)
        feed = self._looked_up.feed | self._features.feed(self.batch)
        self.examples += self.batch.size
        self._micro_batch = self._micro_batch % self._micro_batches + 1
        # The rate and the share are those of the whole step: to compute them for a part of it would exchange that part.
        is_last = self._micro_batch == self._micro_batches
        return tf1.train.SessionRunArgs(self._last_fetches if is_last else self._fetches, feed)

    def _apply(self, results):
        weight = 1.0 if self._training.share is None else float(np.sum(self.batch.weights))
        batch = self._looked_up, dict(zip(self._rows_of, results, strict=False)), weight
        if self._micro_batch < self._micro_batches:
            self._rows.train(self._embeddings.add_gradients, *batch)
        else:
            step = RowStep(*map(float, results[len(self._rows_of) :]))
            self._rows.train(self._embeddings.apply_gradients, *batch, step)

    def close(self):
        """Ends the thread that looks rows up beside the steps, where there is one."""
        self._rows.close()


class RowsInTurn:
    """Looks a batch's rows up before its step and trains them after it, in the thread of the steps.

    Args:
      embeddings: `Embeddings`.
      batches: iterable of (`Batch`, lookups).
      training: whether keys without a row get one.
    """

    def __init__(self, embeddings, batches, training):
        self._embeddings, self._batches, self._training = embeddings, iter(batches), training

    def read(self):
        """-> (Batch, what `look_up` takes) of the next batch; StopIteration at the end."""
        return next(self._batches)

    def look_up(self, lookups):
        """-> `LookedUp`."""
        return self._embeddings.look_up(lookups, create=self._training)

    def train(self, call, *arguments):
        """Has `call`, a method of the `Embeddings` that takes gradients, done before any later lookup but the next."""
        call(*arguments)

    def finish_pending(self):
        """Nothing to do: every step's rows are trained when the step ends."""

    def close(self):
        """Nothing to do."""


class RowPipeline:
    """While a step runs, trains the rows of the step before it and then looks up those of the step after it.

    One thread does these in a fixed order, so a run is as repeatable as one without:

        thread of the steps:   step t          step t+1          step t+2
        this one:              train t-1, look up t+1   train t, look up t+2   ...

    Staleness: a step reads rows that lack the step before it, and no other. Before a sync, a checkpoint or an
    evaluation all is trained, and the batch that was looked up already is so again: rows are whole there, and a resumed
    run goes on like one that was not interrupted.

    Caveat: a key of the batch looked up ahead gets its row then, so a checkpoint may hold rows that no step has trained
    yet. Not for tables with limits, whose rows may go while a step is to train them.

    Args:
      embeddings: `Embeddings`.
      batches: iterable of (`Batch`, lookups), to be trained.

    Source: the semi-synchronous training pipelines of TorchRec (`TrainPipelineSemiSync`).
    """

    def __init__(self, embeddings, batches):
        self._embeddings, self._batches = embeddings, iter(batches)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "embedding rows")
        self._trainings = collections.deque()
        self._next = None  # (Batch, lookups, Future of LookedUp); None before the first batch and behind the last.
        self._has_begun = False

    def read(self):
        """As `RowsInTurn`."""
        if not self._has_begun:
            self._has_begun = True
            self._prepare()
        if self._next is None:
            raise StopIteration
        return self._next[0], self._next

    def look_up(self, prepared):
        """As `RowsInTurn`; starts the lookup of the next batch."""
        _, lookups, future = prepared
        looked_up = future.result() if future else self._start(lookups).result()
        while self._trainings and self._trainings[0].done():
            self._trainings.popleft().result()  # Raises what it raised.
        self._prepare()
        return looked_up

    def train(self, call, *arguments):
        """As `RowsInTurn`, in this thread's order."""
        self._trainings.append(self._thread.submit(call, *arguments))

    def finish_pending(self):
        """Trains all rows of the steps so far, before a sync or a flush."""
        while self._trainings:
            self._trainings.popleft().result()
        if self._next is not None:
            batch, lookups, future = self._next
            if future is not None:
                future.result()
            self._next = batch, lookups, None

    def close(self):
        """Waits for what is under way, whatever becomes of it."""
        self._thread.shutdown(cancel_futures=True)

    def _prepare(self):
        try:
            batch, lookups = next(self._batches)
        except StopIteration:
            self._next = None
        else:
            self._next = batch, lookups, self._start(lookups)

    def _start(self, lookups):
        return self._thread.submit(self._embeddings.look_up, lookups, create=True)
