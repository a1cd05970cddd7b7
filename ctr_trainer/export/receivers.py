"""The features of exported graphs, made from raw values or from embedding rows that come with each request."""

from collections.abc import Mapping

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.export.exported_table import ExportedTable
from ctr_trainer.export.raw_keys import RawKeys
from ctr_trainer.features.columns import SparseFeature, Statistics
from ctr_trainer.features.spec import FeatureSpec, TableFeatures
from ctr_trainer.features.tensors import EMBEDDING, MASK, SEQUENCE, Features, operation_name


class ExportedFeatures(Features):
    """Features that the graph makes from raw values.

    Each column that the features of the model have read so far has an input of the same name, a placeholder in the dict
    `receivers`. docs/features.md lists their dtypes and shapes under "What an exported graph takes".

    A key that training never saw gets zeros, as in `Estimator.predict`.
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None, tables: Mapping[str, ExportedTable]) -> None:
        super().__init__(spec, statistics)
        self._tables = tables
        self._raw = RawKeys(spec, statistics)
        self.receivers, self._rows = self._raw.receivers, dict[str, tf.Tensor]()

    def _raw_dense(self) -> tf.Tensor:
        return tf.stack([self._raw.numbers(feature.column) for feature in self.spec.dense], 1)

    def _segment(self, table: TableFeatures, kind: str, dim: int) -> tf.Tensor:
        start = 0 if kind == EMBEDDING else self._tables[table.name].linear_start
        return self._pooled(table)[..., start : start + dim]

    def _pooled(self, table: TableFeatures) -> tf.Tensor:
        """Returns float32[B, F, weights], the rows of the single-valued features and the bags, looked up once."""
        if table.name not in self._rows:
            exported = self._tables[table.name]
            parts = [exported.look_up(self._raw.singles(table.single))] if table.single else []
            for feature in table.bags:
                values = self._raw.lists(feature)
                rows = exported.look_up(values.keys)
                parts.append(tf.reduce_sum(rows * values.coefficients()[..., None], 1, keepdims=True))
            self._rows[table.name] = tf.concat(parts, 1) if len(parts) > 1 else parts[0]
        return self._rows[table.name]

    def _sequence(self, table: TableFeatures, feature: SparseFeature) -> tf.Tensor:
        return self._tables[table.name].look_up(self._raw.lists(feature).aligned())[..., : table.dim]

    def _mask(self, feature: SparseFeature) -> tf.Tensor:
        return tf.cast(tf.not_equal(self._raw.lists(feature).aligned(), 0), tf.float32)


class RowInputs(Features):
    """Features whose rows are looked up elsewhere: in a key-value cluster or by another process.

    Each tensor that the model reads has an input (`receivers`). B is any batch size, F the number of a table's
    single-valued features and bags: the features come first, then the bags, each in the spec's order.

    | input | tensor |
    |---|---|
    | the column of a dense feature | float32[B], NaN for a missing value; or string[B], see `raw_inputs.RawColumn` |
    | `embedding/dim16` | float32[B, F, 16], the vector of a feature's key; for a bag, the pooled vector |
    | `linear/dim16` | float32[B, F, 1], the linear weights in the same order |
    | `sequence/<name>` | float32[B, max_length, dim], the vectors in order, then zeros |
    | `sequence_mask/<name>` | float32[B, max_length], 1 where there is a vector |

    A key without a row gets zeros, as in `Estimator.predict`.

    Attributes:
      receivers: dict of input -> placeholder.
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None) -> None:
        super().__init__(spec, statistics)
        self._raw = RawKeys(spec, statistics)
        self.receivers = self._raw.receivers

    def _receiver(self, name: str, shape: list[int | None]) -> tf.Tensor:
        if name not in self.receivers:
            self.receivers[name] = tf1.placeholder(tf.float32, [None, *shape], operation_name(name))
        return self.receivers[name]

    def _raw_dense(self) -> tf.Tensor:
        return tf.stack([self._raw.numbers(feature.column) for feature in self.spec.dense], 1)

    def _segment(self, table: TableFeatures, kind: str, dim: int) -> tf.Tensor:
        return self._receiver(f"{kind}/{table.name}", [len(table.pooled), dim])

    def _sequence(self, table: TableFeatures, feature: SparseFeature) -> tf.Tensor:
        return self._receiver(f"{SEQUENCE}/{feature.name}", [feature.max_length, table.dim])

    def _mask(self, feature: SparseFeature) -> tf.Tensor:
        return self._receiver(f"{MASK}/{feature.name}", [feature.max_length])
