"""Feeds each step its batch and trains the embedding rows behind it."""

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.worker.row_step import RowStep
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.hooks.order import Order
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
