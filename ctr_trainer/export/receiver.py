"""The inputs of an exported graph: raw values in, embedding rows out, by stock TensorFlow operations."""

import tensorflow as tf

from ctr_trainer.export.raw_lists import RawLists
from ctr_trainer.features import buckets
from ctr_trainer.features.fed import operation_name
from ctr_trainer.features.hashing import graph_keys
from ctr_trainer.features.tensors import EMBEDDING, Features
from ctr_trainer.features.times import graph_derived

tf1 = tf.compat.v1


class ExportedFeatures(Features):
    """Features made from raw values inside the graph.

    Inputs (`receivers`), by the spec's feature names; B is any batch size, N any number of values:

    | feature | tensor |
    |---|---|
    | dense, bucketised | float32[B], NaN for a missing value |
    | single-valued | string[B], "" for a missing value; the time of one that `derive` makes, as its text |
    | bag | string[B, N], padded with "" at the end; with weights as the data have them, "news:0.5" |
    | sequence | string[B, N], oldest first, padded with "" at the end; the newest `max_length` count |

    A key that training never saw looks up zeros, as in `Estimator.predict`.

    Args:
      spec, statistics: as the model was trained with.
      tables: dict of table name -> `ExportedTable`.
    """

    def __init__(self, spec, statistics, tables):
        super().__init__(spec, statistics)
        self._tables = tables
        self._buckets = buckets.of_spec(spec, statistics)
        self.receivers = {f.name: tf1.placeholder(tf.float32, [None], operation_name(f.name)) for f in spec.dense}
        for feature in spec.sparse:
            shape = [None] if feature.combiner is None else [None, None]
            kind = tf.float32 if feature.is_bucketised else tf.string
            self.receivers[feature.name] = tf1.placeholder(kind, shape, operation_name(feature.name))
        self._keys, self._lists = {}, {}

    def _raw_dense(self):
        return tf.stack([self.receivers[feature.name] for feature in self.spec.dense], 1)

    def _weight(self):
        raise KeyError("an exported graph predicts: examples have no weight there")

    def _segment(self, table, kind, dim):
        exported = self._tables[table.name]
        start = 0 if kind == EMBEDDING else exported.linear_start
        parts = []
        if table.single:
            keys = tf.stack([self._single(feature) for feature in table.single], 1)
            parts.append(exported.look_up(keys, start, dim))
        for feature in table.bags:
            values = self._list(feature)
            rows = exported.look_up(values.keys, start, dim)
            parts.append(tf.reduce_sum(rows * values.coefficients()[..., None], 1, keepdims=True))
        return tf.concat(parts, 1) if len(parts) > 1 else parts[0]

    def _sequence(self, table, feature):
        return self._tables[table.name].look_up(self._list(feature).aligned(), 0, table.dim)

    def _mask(self, feature):
        return tf.cast(tf.not_equal(self._list(feature).aligned(), 0), tf.float32)

    def _single(self, feature):
        """-> int64[B]; a value that the source format writes for a missing one counts as missing."""
        if feature.name not in self._keys:
            values = self.receivers[feature.name]
            self._keys[feature.name] = (
                self._buckets[feature.name].graph_keys(values)
                if feature.is_bucketised
                else _keys_of_texts(feature, values, self.spec.csv.null_values)
            )
        return self._keys[feature.name]

    def _list(self, feature):
        if feature.name not in self._lists:
            raw = self.receivers[feature.name]
            self._lists[feature.name] = RawLists(feature, raw, self.spec.csv.null_values)
        return self._lists[feature.name]


def _keys_of_texts(feature, values, null_values):
    for null in filter(None, null_values):
        values = tf.where(tf.equal(values, null), tf.fill(tf.shape(values), ""), values)
    if feature.derive:
        values = graph_derived(values, feature.derive)
    keys = graph_keys(feature.slot, values)
    return keys if feature.missing_has_row else tf.where(tf.equal(values, ""), tf.zeros_like(keys), keys)
