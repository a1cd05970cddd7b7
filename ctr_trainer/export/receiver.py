"""The inputs of an exported graph. Stock TensorFlow operations turn raw values into embedding rows."""

import tensorflow as tf

from ctr_trainer.export.raw_lists import RawLists
from ctr_trainer.features import buckets
from ctr_trainer.features.fed import operation_name
from ctr_trainer.features.hashing import graph_keys
from ctr_trainer.features.tensors import EMBEDDING, Features
from ctr_trainer.features.times import graph_derived

tf1 = tf.compat.v1


class ExportedFeatures(Features):
    """Features that are made from raw values inside the graph.

    The inputs (`receivers`) have the names of the features that the model reads: a model that reads no history has no
    input for one. B is any batch size, N any number of values:

    | feature | tensor |
    |---|---|
    | dense, bucketised | float32[B], NaN for a missing value |
    | single-valued | string[B], "" for a missing value; a feature with `derive` takes the text of the time |
    | bag | string[B, N], padded with "" at the end; weights stand in the text, as in the data: "news:0.5" |
    | sequence | string[B, N], oldest first, padded with "" at the end; the newest `max_length` values count |

    A key that training never saw looks up zeros, as in `Estimator.predict`.

    Args:
      spec, statistics: FeatureSpec and statistics that the model was trained with.
      tables: dict of table name -> `ExportedTable`.
    """

    def __init__(self, spec, statistics, tables):
        super().__init__(spec, statistics)
        self._tables = tables
        self._buckets = buckets.of_spec(spec, statistics)
        self.receivers = {}
        self._rows, self._lists = {}, {}

    def _receiver(self, feature, kind, shape):
        """-> the placeholder of a feature, which is made when the model first reads the feature."""
        if feature.name not in self.receivers:
            self.receivers[feature.name] = tf1.placeholder(kind, shape, operation_name(feature.name))
        return self.receivers[feature.name]

    def _raw_dense(self):
        return tf.stack([self._receiver(feature, tf.float32, [None]) for feature in self.spec.dense], 1)

    def _weight(self):
        raise KeyError("no feature 'weight': an exported graph only predicts, and its examples have no weights")

    def _segment(self, table, kind, dim):
        start = 0 if kind == EMBEDDING else self._tables[table.name].linear_start
        return self._pooled(table)[..., start : start + dim]

    def _pooled(self, table):
        """-> float32[B, F, weights], the rows of the single-valued features and the bags; they are looked up once."""
        if table.name not in self._rows:
            exported = self._tables[table.name]
            parts = [exported.look_up(self._singles(table.single))] if table.single else []
            for feature in table.bags:
                values = self._list(feature)
                rows = exported.look_up(values.keys)
                parts.append(tf.reduce_sum(rows * values.coefficients()[..., None], 1, keepdims=True))
            self._rows[table.name] = tf.concat(parts, 1) if len(parts) > 1 else parts[0]
        return self._rows[table.name]

    def _sequence(self, table, feature):
        return self._tables[table.name].look_up(self._list(feature).aligned())[..., : table.dim]

    def _mask(self, feature):
        return tf.cast(tf.not_equal(self._list(feature).aligned(), 0), tf.float32)

    def _singles(self, features):
        """-> int64[B, F], the keys of single-valued features."""
        texts = [feature for feature in features if not feature.is_bucketised]
        parts = []
        if texts:
            values = [self._receiver(feature, tf.string, [None]) for feature in texts]
            parts.append(_keys_of_texts(texts, values, self.spec.csv.null_values))
        for feature in features:
            if feature.is_bucketised:
                values = self._receiver(feature, tf.float32, [None])
                parts.append(self._buckets[feature.name].graph_keys(values)[:, None])
        if len(parts) == 1:
            return parts[0]
        places = {feature.name: place for place, feature in enumerate(sorted(features, key=lambda f: f.is_bucketised))}
        return tf.gather(tf.concat(parts, 1), [places[feature.name] for feature in features], axis=1)

    def _list(self, feature):
        if feature.name not in self._lists:
            raw = self._receiver(feature, tf.string, [None, None])
            self._lists[feature.name] = RawLists(feature, raw, self.spec.csv.null_values)
        return self._lists[feature.name]


def _keys_of_texts(features, values, null_values):
    """A string[B] per feature -> int64[B, F], keys. A text among the source's `null_values` counts as missing."""
    values = _without(null_values, tf.stack(values, 1))
    if any(feature.derive for feature in features):
        columns = zip(features, tf.unstack(values, axis=1), strict=True)
        values = tf.stack([graph_derived(c, f.derive) if f.derive else c for f, c in columns], 1)
    keys = graph_keys([feature.slot for feature in features], values)
    if all(feature.missing_has_row for feature in features):
        return keys
    has_row = tf.constant([feature.missing_has_row for feature in features])
    return tf.where(tf.equal(values, "") & ~has_row, tf.zeros_like(keys), keys)


def _without(null_values, values):
    for null in filter(None, null_values):
        values = tf.where(tf.equal(values, null), "", values)
    return values
