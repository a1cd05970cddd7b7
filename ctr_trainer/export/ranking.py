"""The signatures for ranking: one context with many candidates.

A column belongs to the context of a request if its input has one value, and to the candidates if it has n values. The
signature `ranking` computes n predictions, and looks up, pools and multiplies the context only once.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.export.exported_table import ExportedTable
from ctr_trainer.export.raw_keys import RawKeys, flat_order, key_outputs
from ctr_trainer.export.signatures import SERVING, signature_defs
from ctr_trainer.features.columns import SparseFeature, Statistics
from ctr_trainer.features.ranked import RankedBlock, RankedColumns
from ctr_trainer.features.spec import FeatureSpec, TableFeatures
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE, Features, operation_name
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.system.messages.errors import UserError

RANKING, RANKING_KEYS = "ranking", "ranking_keys"
CONTEXT, CANDIDATES, COLUMNS = "context", "candidates", "columns"


class NotRankable(UserError):
    """A `model_fn` cannot make the graph of a ranking request."""


class RankedFeatures(Features, abc.ABC):
    """The features of one context and n candidates; each tensor has n examples.

    `receivers` are the placeholders by input, all made at construction.
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None, receivers: dict[str, tf.Tensor]) -> None:
        super().__init__(spec, statistics)
        self._raw = RawKeys(spec, statistics)
        self._raw.receivers |= receivers
        self.receivers = receivers
        examples = {name: each for name, each in receivers.items() if not name.startswith(f"{COLUMNS}/")}
        self._sizes = {name: tf.shape(each)[0] for name, each in examples.items()}
        sizes = tf.stack(list(self._sizes.values()))
        count = tf.reduce_max(sizes)
        is_right = tf.reduce_all(tf.equal(sizes, 1) | tf.equal(sizes, count))
        message = "a ranking request gives 1 value of a column of the context, and one per candidate of the others"
        with tf.control_dependencies([tf1.Assert(is_right, [message, sizes])]):
            self._count = tf.identity(count)
        self._blocks: dict[str, RankedBlock] = {}

    def ranked(self, name: str) -> RankedColumns | None:
        if name == "dense":
            return RankedColumns((self._dense_block(),))
        if name == LINEAR:
            return RankedColumns(tuple(self._kept(table, LINEAR, 1) for table in self._pooled_tables()))
        kind, _, table_name = name.partition("/")
        table = next((table for table in self._pooled_tables() if table.name == table_name or not table_name), None)
        if kind != EMBEDDING or table is None:
            return None
        return RankedColumns((self._kept(table, EMBEDDING, table.dim),))

    @abc.abstractmethod
    def _block(self, table: TableFeatures, kind: str, dim: int) -> RankedBlock:
        """Returns the embeddings or the linear weights of a table's single-valued features and bags."""

    def _kept(self, table: TableFeatures, kind: str, dim: int) -> RankedBlock:
        name = f"{kind}/{table.name}"
        if name not in self._blocks:
            self._blocks[name] = self._block(table, kind, dim)
        return self._blocks[name]

    def _dense_block(self) -> RankedBlock:
        # The transform costs little next to the first layer, so it is computed for each candidate.
        values, sizes = (
            self["dense"][..., None],
            tf.stack([self._sizes[self.spec.source(f.column)] for f in self.spec.dense]),
        )
        shared, own = self._split(tf.repeat(sizes, self.dense_widths))
        columns, count = tf.concat([shared, own], 0), sum(self.dense_widths)
        return RankedBlock(tf.gather(values[:1], shared, axis=1), tf.gather(values, own, axis=1), columns, count, 1)

    def _split(self, sizes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the indices of the context's columns and the indices of the candidates' columns."""
        is_own = tf.equal(sizes, self._count)
        shared, own = (tf.cast(tf.where(each)[:, 0], tf.int32) for each in (~is_own, is_own))
        return shared, own

    def _size(self, feature: SparseFeature) -> tf.Tensor:
        """Returns the number of values of a sparse feature or a cross: of a candidates' column, if it has any."""
        return tf.reduce_max([self._sizes[column] for column in self.spec.sources[feature.name]])

    def _expanded(self, value: tf.Tensor) -> tf.Tensor:
        return tf.broadcast_to(value, tf.concat([[self._count], tf.shape(value)[1:]], 0))

    def _raw_dense(self) -> tf.Tensor:
        numbers = [self._expanded(self._raw.numbers(f.column)) for f in self.spec.dense]
        return tf.stack([tf.ensure_shape(each, [None]) for each in numbers], 1)

    def _segment(self, table: TableFeatures, kind: str, dim: int) -> tf.Tensor:
        return self._kept(table, kind, dim).expanded()


class RankedValues(RankedFeatures):
    """Features that the graph makes from raw values; its inputs have the names of those that are `read`."""

    def __init__(
        self,
        spec: FeatureSpec,
        statistics: Statistics | None,
        tables: Mapping[str, ExportedTable],
        read: Mapping[str, tf.Tensor],
    ) -> None:
        receivers = {name: _like(name, each, each.shape.as_list()) for name, each in read.items()}
        super().__init__(spec, statistics, receivers)
        self._tables = tables
        self._rows: dict[str, RankedBlock] = {}

    def _block(self, table: TableFeatures, kind: str, dim: int) -> RankedBlock:
        start = 0 if kind == EMBEDDING else self._tables[table.name].linear_start
        rows = self._pooled(table)
        context, candidates = (each[..., start : start + dim] for each in (rows.context, rows.candidates))
        return RankedBlock(context, candidates, rows.columns, rows.count, dim)

    def _pooled(self, table: TableFeatures) -> RankedBlock:
        """Returns the rows of the single-valued features and the pooled bags of a table, looked up once."""
        if table.name not in self._rows:
            exported = self._tables[table.name]
            parts = [exported.look_up(self._raw.flat_singles(table.single))] if table.single else []
            for feature in table.bags:
                values = self._raw.lists(feature)
                parts.append(tf.reduce_sum(exported.look_up(values.keys) * values.coefficients()[..., None], 1))
            order = [*flat_order(table.single), *table.bags]
            places = tf.constant([table.pooled.index(feature) for feature in order])
            # The rows are ordered by feature; feature i has `sizes[i]` rows.
            rows, sizes = tf.concat(parts, 0), tf.stack([self._size(feature) for feature in order])
            shared, own = self._split(sizes)
            starts = tf.cumsum(sizes, exclusive=True)
            of_candidates = tf.range(self._count)[:, None] + tf.gather(starts, own)[None]
            self._rows[table.name] = RankedBlock(
                context=tf.gather(rows, tf.gather(starts, shared))[None],
                candidates=tf.gather(rows, of_candidates),
                columns=tf.gather(places, tf.concat([shared, own], 0)),
                count=len(order),
                dim=rows.shape.as_list()[1],
            )
        return self._rows[table.name]

    def _sequence(self, table: TableFeatures, feature: SparseFeature) -> tf.Tensor:
        rows = self._tables[table.name].look_up(self._raw.lists(feature).aligned())[..., : table.dim]
        return tf.ensure_shape(self._expanded(rows), [None, feature.max_length, table.dim])

    def _mask(self, feature: SparseFeature) -> tf.Tensor:
        mask = tf.cast(tf.not_equal(self._raw.lists(feature).aligned(), 0), tf.float32)
        return tf.ensure_shape(self._expanded(mask), [None, feature.max_length])


class RankedRows(RankedFeatures):
    """Features whose rows are looked up elsewhere; `read` are the inputs of `receivers.RowInputs`.

    docs/features.md lists the dtypes and shapes of the inputs under "One context with many candidates".
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None, read: Mapping[str, tf.Tensor]) -> None:
        receivers: dict[str, tf.Tensor] = {}
        for name, each in read.items():
            kind, _, table = name.partition("/")
            shape = each.shape.as_list()
            if kind not in (EMBEDDING, LINEAR) or not table:
                receivers[name] = _like(name, each, shape)
                continue
            for side in (CONTEXT, CANDIDATES):
                receivers[f"{side}/{name}"] = _like(f"{side}/{name}", each, [None, None, shape[2]])
            if f"{COLUMNS}/{table}" not in receivers:
                receivers[f"{COLUMNS}/{table}"] = tf1.placeholder(
                    tf.int32, shape[1:2], operation_name(f"{COLUMNS}/{table}")
                )
        super().__init__(spec, statistics, receivers)

    def _block(self, table: TableFeatures, kind: str, dim: int) -> RankedBlock:
        context, candidates = (self.receivers[f"{side}/{kind}/{table.name}"] for side in (CONTEXT, CANDIDATES))
        columns = self.receivers[f"{COLUMNS}/{table.name}"]
        return RankedBlock(context, candidates, columns, len(table.pooled), dim)

    def _sequence(self, table: TableFeatures, feature: SparseFeature) -> tf.Tensor:
        return self._of_list(f"{SEQUENCE}/{feature.name}")

    def _mask(self, feature: SparseFeature) -> tf.Tensor:
        return self._of_list(f"{MASK}/{feature.name}")

    def _of_list(self, name: str) -> tf.Tensor:
        given = self.receivers[name]
        return tf.ensure_shape(self._expanded(given), given.shape)


def _like(name: str, tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    return tf1.placeholder(tensor.dtype, shape, operation_name(name))


def ranking_signatures(model_fn: Callable[..., Any], params: Any, features: RankedFeatures) -> dict[str, Any]:
    """Makes the graph of a ranking request, which shares its variables with the graph of `serving_default`.

    Returns {"ranking": SignatureDef}, and for `RankedRows` of a model with sparse features also "ranking_keys". Raises
    NotRankable if the `model_fn` cannot make a second graph with its variables.
    """
    before = len(tf1.global_variables())
    try:
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            spec = model_fn(features, None, ModeKeys.PREDICT, params)
        found = {RANKING: signature_defs(spec, features.receivers)[SERVING]}
    except Exception as error:
        raise NotRankable(f"the model cannot score a context with candidates: {error}") from error
    if len(tf1.global_variables()) > before:
        raise NotRankable(
            "the model makes variables without tf.compat.v1.get_variable, so context and candidates cannot share them"
        )
    if isinstance(features, RankedRows):
        raw = RawKeys(features.spec, features.statistics)
        read = {name.removeprefix(f"{CONTEXT}/") for name in features.receivers}
        outputs = key_outputs(raw, features.spec, read, is_ranked=True)
        if outputs:
            found[RANKING_KEYS] = tf1.saved_model.predict_signature_def(raw.receivers, outputs)
    return found
