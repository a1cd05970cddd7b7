"""The inputs of an exported graph: raw values in, embedding rows out, by stock TensorFlow operations."""

import tensorflow as tf

from ctr_trainer.features.hashing import graph_keys
from ctr_trainer.features.tensors import EMBEDDING, Features

tf1 = tf.compat.v1


class ExportedFeatures(Features):
    """Features made from raw values inside the graph.

    Inputs (`receivers`), by the spec's feature names; B is any batch size:

    | feature | tensor |
    |---|---|
    | dense | float32[B], NaN for a missing value |
    | single-valued | string[B], "" for a missing value |
    | multi-valued | string[B, L], padded with "" at the end |

    A key that training never saw looks up zeros, as in `Estimator.predict`.

    Args:
      spec, statistics: as the model was trained with.
      tables: dict of table name -> `ExportedTable`.
    """

    def __init__(self, spec, statistics, tables):
        super().__init__(spec, statistics)
        self._tables = tables
        self._slots = {}
        self.receivers = {feature.name: tf1.placeholder(tf.float32, [None], feature.name) for feature in spec.dense}
        for feature in spec.sparse:
            shape = [None] if feature.combiner is None else [None, None]
            self.receivers[feature.name] = tf1.placeholder(tf.string, shape, feature.name)

    def _raw_dense(self):
        return tf.stack([self.receivers[feature.name] for feature in self.spec.dense], 1)

    def _weight(self):
        raise KeyError("an exported graph predicts: examples have no weight there")

    def _segment(self, table, kind, dim):
        exported = self._tables[table.name]
        start = 0 if kind == EMBEDDING else exported.linear_start
        parts = []
        if table.single:
            keys = tf.stack([self._keys(feature) for feature in table.single], 1)
            parts.append(exported.look_up(keys, start, dim))
        for feature in table.bags:
            parts.append(self._pooled(exported, feature, start, dim))
        return tf.concat(parts, 1) if len(parts) > 1 else parts[0]

    def _pooled(self, exported, feature, start, dim):
        """-> float32[B, 1, dim], the sum or the mean of a bag's rows."""
        values = self.receivers[feature.name]
        taken = tf.not_equal(values, "")
        if feature.max_length:
            taken = tf.logical_and(taken, tf.cumsum(tf.cast(taken, tf.int32), 1) <= feature.max_length)
        keys = graph_keys(feature.slot, values)
        keys = tf.where(taken, keys, tf.zeros_like(keys))
        pooled = tf.reduce_sum(exported.look_up(keys, start, dim), 1, keepdims=True)
        if feature.combiner == "mean":
            count = tf.reduce_sum(tf.cast(tf.not_equal(keys, 0), tf.float32), 1)
            pooled = tf.math.divide_no_nan(pooled, count[:, None, None])
        return pooled

    def _keys(self, feature):
        """-> int64[B]; a value that the source format writes for a missing one counts as missing."""
        values = self.receivers[feature.name]
        for null in self.spec.csv.null_values:
            values = tf.where(tf.equal(values, null), tf.fill(tf.shape(values), ""), values)
        return graph_keys(feature.slot, values)
