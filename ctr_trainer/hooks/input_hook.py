"""Feeds each step its batch and trains the embedding rows behind it."""

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.worker.row_step import RowStep
from ctr_trainer.graph_notes import step_plan
from ctr_trainer.measuring.latency import Latency
from ctr_trainer.measuring.phases import Phases

tf1 = tf.compat.v1


class InputHook(tf1.train.SessionRunHook):
    """Before a step, feeds a batch and the embedding rows it looks up; after it, applies the rows' gradients at once.

    Where an optimizer step takes several micro-batches, their gradients are summed and applied after the last.

    The end of the batches ends the session's loop. This hook must come before those that sync or save rows, which would
    otherwise miss the step.

    Args:
      features: `FedFeatures`.
      embeddings: `Embeddings`.
      rows: `RowsInTurn` or `RowPipeline`, of `Embeddings.feed`.
      training: `RowTraining`; None to apply no gradients.
      phases: `Phases` of this thread; None where nobody looks at them.
      has_read: f(), called after each batch that is read; None for nothing.

    Attributes:
      batch: the batch of the step now running.
      examples: how many examples were fed so far.
      read, lookup, update: `Latency` of what this thread spends on a batch: waiting until it is read, looking its rows
        up, and applying its gradients to them.
    """

    def __init__(self, features, embeddings, rows, training=None, phases=None, has_read=None):
        self._features, self._embeddings, self._training, self._rows = features, embeddings, training, rows
        self._looked_up, self._has_read = None, has_read or (lambda: None)
        self._phases = phases or Phases()
        self._fetches, self._last_fetches = {}, {}
        self._micro_batches, self._micro_batch = 1, 0
        self.batch = None
        self.examples = 0
        self.read, self.lookup, self.update = (
            Latency(name) for name in ("StepReadWait", "StepLookup", "StepRowUpdate")
        )

    @property
    def latencies(self):
        return [self.read, self.lookup, self.update]

    def begin(self):
        training = self._training
        if training is not None and training.gradients:
            self._micro_batches = step_plan.current().accumulation_steps
            self._fetches = {"gradients": training.gradients}
            self._last_fetches = {**self._fetches, "learning_rate": training.learning_rate}
            if training.share is not None:
                self._last_fetches["share"] = training.share

    def before_run(self, run_context):
        with self._phases.within("read"), self.read.measure():
            self.batch, lookups = self._rows.read()
        self._has_read()
        with self._phases.within("lookup"), self.lookup.measure():
            self._looked_up = self._rows.look_up(lookups)
        feed = self._looked_up.feed | self._features.feed(self.batch)
        self.examples += self.batch.size
        self._micro_batch = self._micro_batch % self._micro_batches + 1
        # The rate and the share are those of the whole step: to compute them for a part of it would exchange that part.
        is_last = self._micro_batch == self._micro_batches
        return tf1.train.SessionRunArgs(self._last_fetches if is_last else self._fetches, feed)

    def after_run(self, run_context, run_values):
        if self._fetches:
            with self._phases.within("update"), self.update.measure():
                self._apply(run_values.results)

    def _apply(self, results):
        weight = 1.0 if self._training.share is None else float(np.sum(self.batch.weights))
        batch = self._looked_up, results["gradients"], weight
        if self._micro_batch < self._micro_batches:
            self._rows.train(self._embeddings.add_gradients, *batch)
        else:
            step = RowStep(float(results["learning_rate"]), float(results.get("share", 1.0)))
            self._rows.train(self._embeddings.apply_gradients, *batch, step)

    def seconds_by_phase(self, seconds):
        """As `StepHook`; what is left is the making of the feed."""
        latencies = {"read_sample": self.read, "embedding_lookup": self.lookup, "push": self.update}
        parts = {name: latency.total_seconds for name, latency in latencies.items()}
        return {**parts, "input_to_device": seconds - sum(parts.values())}

    def close(self):
        """Ends the thread that looks rows up beside the steps, where there is one."""
        self._rows.close()
