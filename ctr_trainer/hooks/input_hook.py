"""Feeds each step its batch and trains the embedding rows behind it."""

import numpy as np
import tensorflow as tf

from ctr_trainer import step_plan
from ctr_trainer.hooks.row_pipeline import RowPipeline, RowsInTurn
from ctr_trainer.latency import Latency
from ctr_trainer.phases import Phases

tf1 = tf.compat.v1


class InputHook(tf1.train.SessionRunHook):
    """Before a step, feeds a batch and the embedding rows it looks up; after it, applies the rows' gradients at once.

    Where an optimizer step takes several micro-batches, their gradients are summed and applied after the last.

    The end of the batches ends the session's loop. This hook must come before those that sync or save rows, which would
    otherwise miss the step.

    Args:
      features: `FedFeatures`.
      embeddings: `Embeddings`.
      batches: iterable of (`Batch`, lookups), as `Embeddings.prepare` returns them.
      training: whether keys without a row get one, and gradients are applied.
      overlap: whether rows are looked up and trained beside the steps, see `RowPipeline`.
      phases: `Phases` of this thread; None where nobody looks at them.
      has_read: f(), called after each batch that is read; None for nothing.

    Attributes:
      batch: the batch of the step now running.
      examples: how many examples were fed so far.
      read, lookup, update: `Latency` of what this thread spends on a batch: waiting until it is read, looking its rows
        up, and applying its gradients to them.
    """

    def __init__(self, features, embeddings, batches, training, overlap=False, phases=None, has_read=None):
        self._features, self._embeddings, self._training = features, embeddings, training
        self._rows = RowPipeline(embeddings, batches) if overlap else RowsInTurn(embeddings, batches, training)
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
        features = self._features
        if self._training and features.gradients:
            self._micro_batches = step_plan.current().accumulation_steps
            self._fetches = {"gradients": features.gradients}
            self._last_fetches = {**self._fetches, "learning_rate": features.learning_rate}
            if features.row_scale is not None:
                self._last_fetches["scale"] = features.row_scale

    def before_run(self, run_context):
        with self._phases.within("read"), self.read.measure():
            self.batch, lookups = self._rows.read()
        self._has_read()
        with self._phases.within("lookup"), self.lookup.measure():
            self._looked_up = self._rows.look_up(lookups)
        feed = self._looked_up.feed | self._features.feed(self.batch)
        self.examples += self.batch.size
        self._micro_batch = self._micro_batch % self._micro_batches + 1
        # The rate and the scale are those of the whole step: to compute them for a part of it would exchange that part.
        is_last = self._micro_batch == self._micro_batches
        return tf1.train.SessionRunArgs(self._last_fetches if is_last else self._fetches, feed)

    def after_run(self, run_context, run_values):
        if self._fetches:
            with self._phases.within("update"), self.update.measure():
                self._apply(run_values.results)

    def _apply(self, results):
        weight = 1.0 if self._features.row_scale is None else float(np.sum(self.batch.weights))
        if self._micro_batch < self._micro_batches:
            self._rows.train(self._embeddings.add_gradients, self._looked_up, results["gradients"], weight)
        else:
            scale, learning_rate = float(results.get("scale", 1.0)), float(results["learning_rate"])
            arguments = results["gradients"], learning_rate, weight, scale
            self._rows.train(self._embeddings.apply_gradients, self._looked_up, *arguments)

    def seconds_by_phase(self, seconds):
        """As `StepHook`; what is left is the making of the feed."""
        latencies = {"read_sample": self.read, "embedding_lookup": self.lookup, "push": self.update}
        parts = {name: latency.total_seconds for name, latency in latencies.items()}
        return {**parts, "input_to_device": seconds - sum(parts.values())}

    def close(self):
        """Ends the thread that looks rows up beside the steps, where there is one."""
        self._rows.close()
