"""Feeds each step its batch and trains the embedding rows behind it."""

import tensorflow as tf

from ctr_trainer.latency import Latency

tf1 = tf.compat.v1


class InputHook(tf1.train.SessionRunHook):
    """Before a step, feeds a batch and the embedding rows it looks up; after it, applies the rows' gradients at once.

    The end of the batches ends the session's loop. This hook must come before those that sync or save rows, which would
    otherwise miss the step.

    Args:
      features: `FedFeatures`.
      embeddings: `Embeddings`.
      batches: iterable of (`Batch`, lookups), as `Embeddings.prepare` returns them.
      training: whether keys without a row get one, and gradients are applied.

    Attributes:
      batch: the batch of the step now running.
      examples: how many examples were fed so far.
      latencies: of reading a batch, looking it up and applying its gradients.
    """

    def __init__(self, features, embeddings, batches, training):
        self._features, self._embeddings, self._training = features, embeddings, training
        self._batches = iter(batches)
        self._fetches = {}
        self.batch = None
        self.examples = 0
        self.read, self.lookup, self.update = (
            Latency(name) for name in ("OpsReadSample", "OpsEmbeddingLookup", "OpsPushGrad")
        )

    @property
    def latencies(self):
        return [self.lookup, self.read, self.update] if self._training else [self.lookup, self.read]

    def begin(self):
        if self._training and self._features.gradients:
            self._fetches = dict(gradients=self._features.gradients, learning_rate=self._features.learning_rate)

    def before_run(self, run_context):
        with self.read.measure():
            self.batch, lookups = next(self._batches)
        with self.lookup.measure():
            feed = self._embeddings.look_up(lookups, create=self._training)
        feed |= self._features.feed(self.batch)
        self.examples += self.batch.size
        return tf1.train.SessionRunArgs(self._fetches, feed)

    def after_run(self, run_context, run_values):
        if self._fetches:
            with self.update.measure():
                results = run_values.results
                self._embeddings.apply_gradients(results["gradients"], float(results["learning_rate"]))
