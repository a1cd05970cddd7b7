"""Features whose values are fed at each step."""

import collections
import re

import numpy as np
import tensorflow as tf

from ctr_trainer.features import example_weights
from ctr_trainer.features.tensors import SEQUENCE, Features

tf1 = tf.compat.v1


class FedFeatures(Features):
    """Features whose values are fed at each step, since rows are looked up outside of the graph.

    Attributes:
      labels: float32[B] for one label; dict of label name -> float32[B] for several.
      segments: dict of table name -> dict of kind -> placeholder, for the kinds that the model asked for: `embedding`
        and `linear` float32[B, F, dim], `sequence/<name>` float32[B, L, dim].
    """

    def __init__(self, spec, statistics, batch_size):
        super().__init__(spec, statistics)
        self.batch_size = batch_size
        self.segments = collections.defaultdict(dict)
        count = len(spec.labels)
        self._labels = tf1.placeholder(tf.float32, [batch_size] if count == 1 else [batch_size, count], "labels")
        self.labels = self._labels
        if count > 1:
            columns = tf.unstack(self._labels, axis=1)
            self.labels = {label.name: column for label, column in zip(spec.labels, columns, strict=True)}
        self.weights = tf1.placeholder(tf.float32, [batch_size], "weights")
        example_weights.record(self.weights)
        self.dense = tf1.placeholder(tf.float32, [batch_size, len(spec.dense)], "dense")
        self._masks = {}

    @property
    def placeholders(self):
        """-> the placeholders of all segments, in a fixed order."""
        return [tensor for kinds in self.segments.values() for tensor in kinds.values()]

    def feed(self, batch):
        """-> feed_dict of a `Batch`, without the rows that the batch looks up."""
        feed = {self._labels: batch.labels, self.weights: batch.weights, self.dense: batch.dense}
        for name, placeholder in self._masks.items():
            lengths = np.diff(batch.bags[name].splits)
            feed[placeholder] = (np.arange(placeholder.shape.as_list()[1]) < lengths[:, None]).astype(np.float32)
        return feed

    def _raw_dense(self):
        return self.dense

    def _weight(self):
        return self.weights

    def _segment(self, table, kind, dim):
        return self._placeholder(table, kind, [len(table.pooled), dim])

    def _sequence(self, table, feature):
        return self._placeholder(table, f"{SEQUENCE}/{feature.name}", [feature.max_length, table.dim])

    def _mask(self, feature):
        name = operation_name(f"mask_{feature.name}")
        self._masks[feature.name] = tf1.placeholder(tf.float32, [self.batch_size, feature.max_length], name)
        return self._masks[feature.name]

    def _placeholder(self, table, kind, shape):
        tensor = tf1.placeholder(tf.float32, [self.batch_size, *shape], operation_name(f"{kind}_{table.name}"))
        self.segments[table.name][kind] = tensor
        return tensor


def operation_name(name):
    """-> a feature's name in the characters that TensorFlow allows for an operation."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return name if re.match(r"[A-Za-z0-9.]", name) else f"x{name}"
