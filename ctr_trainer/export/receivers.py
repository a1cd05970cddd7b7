"""The features of exported graphs, made from raw values or from embedding rows that come with each request."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.export.raw_keys import RawKeys
from ctr_trainer.features.tensors import EMBEDDING, MASK, SEQUENCE, Features, operation_name


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
        self._raw = RawKeys(spec, statistics)
        self._rows = {}

    @property
    def receivers(self):
        """-> dict of feature name -> placeholder, of the features that the model has read so far."""
        return self._raw.receivers

    def _raw_dense(self):
        return tf.stack([self._raw.receiver(feature, tf.float32, [None]) for feature in self.spec.dense], 1)

    def _weight(self):
        raise KeyError("no feature 'weight': an exported graph only predicts, and its examples have no weights")

    def _segment(self, table, kind, dim):
        start = 0 if kind == EMBEDDING else self._tables[table.name].linear_start
        return self._pooled(table)[..., start : start + dim]

    def _pooled(self, table):
        """-> float32[B, F, weights], the rows of the single-valued features and the bags; they are looked up once."""
        if table.name not in self._rows:
            exported = self._tables[table.name]
            parts = [exported.look_up(self._raw.singles(table.single))] if table.single else []
            for feature in table.bags:
                values = self._raw.list(feature)
                rows = exported.look_up(values.keys)
                parts.append(tf.reduce_sum(rows * values.coefficients()[..., None], 1, keepdims=True))
            self._rows[table.name] = tf.concat(parts, 1) if len(parts) > 1 else parts[0]
        return self._rows[table.name]

    def _sequence(self, table, feature):
        return self._tables[table.name].look_up(self._raw.list(feature).aligned())[..., : table.dim]

    def _mask(self, feature):
        return tf.cast(tf.not_equal(self._raw.list(feature).aligned(), 0), tf.float32)


class RowInputs(Features):
    """Features whose rows are looked up elsewhere, in a key-value cluster or in another process.

    The inputs (`receivers`) are those that the model reads. B is any batch size, F the single-valued features, then the
    bags, of a table in the spec's order:

    | input | tensor |
    |---|---|
    | `<dense feature>` | float32[B], NaN for a missing value |
    | `embedding/dim16` | float32[B, F, 16], the vector of a feature's key; of a bag the pooled vectors |
    | `linear/dim16` | float32[B, F, 1], the same of the linear weights |
    | `sequence/<name>` | float32[B, max_length, dim], the vectors in order, then zeros |
    | `sequence_mask/<name>` | float32[B, max_length], 1 where there is a vector |

    A key without a row has zeros, as in `Estimator.predict`.

    Args:
      spec, statistics: FeatureSpec and statistics that the model was trained with.

    Attributes:
      receivers: dict of input -> placeholder.
    """

    def __init__(self, spec, statistics):
        super().__init__(spec, statistics)
        self.receivers = {}

    def _receiver(self, name, shape):
        if name not in self.receivers:
            self.receivers[name] = tf1.placeholder(tf.float32, [None, *shape], operation_name(name))
        return self.receivers[name]

    def _raw_dense(self):
        return tf.stack([self._receiver(feature.name, []) for feature in self.spec.dense], 1)

    def _weight(self):
        raise KeyError("no feature 'weight': an exported graph only predicts, and its examples have no weights")

    def _segment(self, table, kind, dim):
        return self._receiver(f"{kind}/{table.name}", [len(table.pooled), dim])

    def _sequence(self, table, feature):
        return self._receiver(f"{SEQUENCE}/{feature.name}", [feature.max_length, table.dim])

    def _mask(self, feature):
        return self._receiver(f"{MASK}/{feature.name}", [feature.max_length])
