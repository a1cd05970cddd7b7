"""The inputs of an exported dense tower: the embedding rows come with each request."""

import tensorflow as tf

from ctr_trainer.features.tensors import MASK, SEQUENCE, Features, operation_name

tf1 = tf.compat.v1


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
