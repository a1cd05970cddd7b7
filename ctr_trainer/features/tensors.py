"""The features that a `model_fn` reads. A tensor is created when the model first accesses its name."""

import abc
import collections
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.features.columns import BOUNDARIES, FITTED, PIECEWISE, DenseFeature, SparseFeature, Statistics
from ctr_trainer.features.ranked import RankedColumns
from ctr_trainer.features.spec import FeatureSpec, TableFeatures
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "example weights")  # Not a string, so that TensorFlow does not try to serialize the collection.
EMBEDDING, LINEAR, FEATURE, SEQUENCE, MASK = "embedding", "linear", "feature", "sequence", "sequence_mask"
VECTORS, PAIRS, FIELD_SUMS = "vectors", "pairs", "field_sums"


class Features(Mapping, abc.ABC):
    """The tensors that a feature spec offers to a model. A table has columns only for tensors that the model accesses.

    | name | tensor |
    |---|---|
    | `dense` | float32[B, n], the dense features after their transforms; `dense_widths` has each feature's width |
    | `embedding` | float32[B, F, dim], one vector per feature; all features must have the same dim |
    | `embedding/dim16` | float32[B, F16, 16], the vectors of table `dim16`: single-valued features, then bags |
    | `feature/<name>` | float32[B, dim], the vector of one single-valued feature or bag |
    | `linear` | float32[B, F, 1], one weight per feature |
    | `sequence/<name>` | float32[B, L, dim], the vectors of a sequence in order, then zeros |
    | `sequence_mask/<name>` | float32[B, L], 1 where the sequence has a value, then zeros |
    | `weight` | float32[B], the example's weight; 0 for padding |

    `embedding` and `linear` do not include sequences. A sequence's values share the rows of the sequence's slot.

    The tensor of each table and of each sequence is contiguous, because a slice of one wide tensor would be copied in
    the forward pass and in the backward pass.

    Caveat: `feature/<name>` is a slice of `embedding/dimD`. Use it only for the few features that a model treats
    separately, such as the target in DIN.

    Attributes:
      spec: FeatureSpec.
      statistics: dict of feature name -> statistics of the training data that conversion computed.
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None) -> None:
        self.spec = spec
        self.statistics = statistics
        self._tensors: dict[str, tf.Tensor] = {}

    def __getitem__(self, name: str) -> tf.Tensor:
        if name not in self._tensors:
            self._tensors[name] = self._make(name)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        tables = self._pooled_tables()
        names = [*([LINEAR] if tables else []), "weight", *(f"{EMBEDDING}/{table.name}" for table in tables)]
        names += [EMBEDDING] if len(tables) == 1 else []
        names += ["dense"] if self.spec.dense else []
        names += [f"{FEATURE}/{f.name}" for table in tables for f in table.pooled]
        return iter(names + [f"{kind}/{f.name}" for f in self.spec.sequences for kind in (SEQUENCE, MASK)])

    def __contains__(self, name: object) -> bool:
        """Whether the spec offers the name. Unlike `Mapping.__contains__`, this does not create the tensor."""
        return name in set(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def dense_widths(self) -> list[int]:
        """The number of columns of each dense feature: 1, except for `piecewise_linear`."""
        return [len(_columns_of(f, self.statistics)) for f in self.spec.dense]

    def ranked(self, name: str) -> RankedColumns | None:
        """Returns `dense`, `linear` or `embedding/<table>` as columns of a ranking request; None for other batches."""
        return None

    def behaviours(self, name: str) -> Behaviours | None:
        """Returns a sequence without padding, to use instead of `sequence/<name>`; None in an exported graph."""
        return None

    def field_sums(self) -> tf.Tensor | None:
        """Returns float32[B, dim + 1], the sum of the vectors of `embedding`, and the sum of the squares of all values.

        None in an exported graph, or if the features have several dims.
        """
        return None

    def _make(self, name: str) -> tf.Tensor:
        if name not in self:
            raise KeyError(f"no feature {name!r}; feature spec {self.spec.name!r} offers {', '.join(self)}")
        kind, _, what = name.partition("/")
        if name == "dense":
            return dense_transform(self._raw_dense(), self.spec, self.statistics)
        if name == "weight":
            return self._weight()
        if name == LINEAR:
            parts = [self._segment(table, LINEAR, 1) for table in self._pooled_tables()]
            return parts[0] if len(parts) == 1 else tf.concat(parts, 1)
        if name == EMBEDDING:
            return self[f"{EMBEDDING}/{self._pooled_tables()[0].name}"]
        if kind == EMBEDDING:
            table = next(table for table in self.spec.tables if table.name == what)
            return self._segment(table, EMBEDDING, table.dim)
        if kind == FEATURE:
            return self._slice(what)
        table, feature = next((t, f) for t in self.spec.tables for f in t.sequences if f.name == what)
        return self._sequence(table, feature) if kind == SEQUENCE else self._mask(feature)

    def _pooled_tables(self) -> list[TableFeatures]:
        return [table for table in self.spec.tables if table.pooled]

    def _slice(self, name: str) -> tf.Tensor:
        """Returns float32[B, dim], the embedding of one feature."""
        table = next(table for table in self._pooled_tables() if name in [f.name for f in table.pooled])
        return self[f"{EMBEDDING}/{table.name}"][:, [f.name for f in table.pooled].index(name)]

    @abc.abstractmethod
    def _raw_dense(self) -> tf.Tensor:
        """Returns float32[B, n], NaN for a missing value."""

    def _weight(self) -> tf.Tensor:
        """Returns float32[B]. Raises KeyError in an exported graph."""
        raise KeyError("no feature 'weight': an exported graph only predicts, and its examples have no weights")

    @abc.abstractmethod
    def _segment(self, table: TableFeatures, kind: str, dim: int) -> tf.Tensor:
        """Returns float32[B, F, dim] for the features of a table; `kind` is EMBEDDING or LINEAR."""

    @abc.abstractmethod
    def _sequence(self, table: TableFeatures, feature: SparseFeature) -> tf.Tensor:
        """Returns float32[B, L, dim], the vectors of a sequence of the table."""

    @abc.abstractmethod
    def _mask(self, feature: SparseFeature) -> tf.Tensor:
        """Returns float32[B, L], 1 where the sequence has a value."""


class FedFeatures(Features):
    """Features whose values are fed at each step, because rows are looked up outside the graph.

    Attributes:
      labels: float32[B] for one label; dict of label name -> float32[B] for several labels.
      segments: dict of table name -> dict of kind -> placeholder, for the kinds that the model accessed: `embedding`
        and `linear` float32[B, F, dim]; `field_sums` float32[B, dim + 1]; `sequence/<name>` float32[B, L, dim];
      `vectors`, `pairs/<name>`: `Behaviours`.
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None, batch_size: int | None) -> None:
        super().__init__(spec, statistics)
        self.batch_size = batch_size
        self.segments: dict[str, dict[str, tf.Tensor]] = collections.defaultdict(dict)
        count = len(spec.labels)
        self._labels = tf1.placeholder(tf.float32, [batch_size] if count == 1 else [batch_size, count], "labels")
        self.labels = self._labels
        if count > 1:
            columns = tf.unstack(self._labels, axis=1)
            self.labels = {label.name: column for label, column in zip(spec.labels, columns, strict=True)}
        self.weights = tf1.placeholder(tf.float32, [batch_size], "weights")
        record_weights(self.weights)
        self.dense = tf1.placeholder(tf.float32, [batch_size, len(spec.dense)], "dense")
        self._masks: dict[str, tf.Tensor] = {}

    @property
    def placeholders(self) -> list[tf.Tensor]:
        """The placeholders of rows, in a fixed order."""
        return [tensor for kinds in self.segments.values() for tensor in kinds.values() if tensor.dtype.is_floating]

    def feed(self, batch: Any) -> dict[tf.Tensor, np.ndarray]:
        """Returns the feed_dict of a `data.batch.Batch`, without the rows that are looked up for the batch."""
        feed = {self._labels: batch.labels, self.weights: batch.weights, self.dense: batch.dense}
        for name, placeholder in self._masks.items():
            lengths = np.diff(batch.bags[name].splits)
            feed[placeholder] = (np.arange(placeholder.shape.as_list()[1]) < lengths[:, None]).astype(np.float32)
        return feed

    def behaviours(self, name: str) -> Behaviours:
        table = {f.name: table for table in self.spec.tables for f in table.sequences}[name]
        segments, pairs = self.segments[table.name], f"{PAIRS}/{name}"
        for kind, dtype, width in ((VECTORS, tf.float32, table.dim), (pairs, tf.int32, 2)):
            if kind not in segments:
                segments[kind] = tf1.placeholder(dtype, [None, width], operation_name(f"{kind}_{table.name}"))
        return Behaviours(segments[VECTORS], segments[pairs])

    def field_sums(self) -> tf.Tensor | None:
        tables = self._pooled_tables()
        if len(tables) != 1:
            return None
        found = self.segments[tables[0].name].get(FIELD_SUMS)
        return self._placeholder(tables[0], FIELD_SUMS, [tables[0].dim + 1]) if found is None else found

    def _raw_dense(self) -> tf.Tensor:
        return self.dense

    def _weight(self) -> tf.Tensor:
        return self.weights

    def _segment(self, table: TableFeatures, kind: str, dim: int) -> tf.Tensor:
        return self._placeholder(table, kind, [len(table.pooled), dim])

    def _sequence(self, table: TableFeatures, feature: SparseFeature) -> tf.Tensor:
        return self._placeholder(table, f"{SEQUENCE}/{feature.name}", [feature.max_length, table.dim])

    def _mask(self, feature: SparseFeature) -> tf.Tensor:
        name = operation_name(f"mask_{feature.name}")
        self._masks[feature.name] = tf1.placeholder(tf.float32, [self.batch_size, feature.max_length], name)
        return self._masks[feature.name]

    def _placeholder(self, table: TableFeatures, kind: str, shape: list[int]) -> tf.Tensor:
        tensor = tf1.placeholder(tf.float32, [self.batch_size, *shape], operation_name(f"{kind}_{table.name}"))
        self.segments[table.name][kind] = tensor
        return tensor


def operation_name(name: str) -> str:
    """Returns a feature's name, restricted to the characters that TensorFlow allows in an operation name."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return name if re.match(r"[A-Za-z0-9.]", name) else f"x{name}"


def record_weights(weights: tf.Tensor) -> None:
    """Records the weights, float32[B], of the current graph's examples."""
    tf1.add_to_collection(_KEY, weights)


def current_weights() -> tf.Tensor | None:
    """Returns the weights, float32[B], of the current graph's examples; None if none were recorded."""
    weights = tf1.get_collection(_KEY)
    return weights[-1] if weights else None


def dense_transform(dense: tf.Tensor, spec: FeatureSpec, statistics: Statistics | None) -> tf.Tensor:
    """Converts raw dense values to model inputs: fills missing values, clips, then applies each feature's transform.

        none: x    log1p: sign(x) * log1p(|x|)    standardize: (x - mean) / std    minmax: (x - min) / (max - min)
        piecewise_linear: [..., min(max((x - b_t) / (b_t+1 - b_t), 0), 1), ...],   b_0 = min < b_1 < ... < b_T = max

    b_1 to b_(T-1) are quantile boundaries. A linear layer on these T columns can represent every continuous function of
    x that is linear between the b_t and constant outside [min, max].

    A constant feature (std 0, or max = min) becomes 0. `minmax` maps values outside the training data's range outside
    [0, 1], unless they are clipped.

    Args:
      dense: float32[B, n], the columns in the order of `spec.dense`, NaN for a missing value.
      spec: FeatureSpec.
      statistics: dict of feature name -> dict of `mean`, `std`, `min`, `max` and, for `piecewise_linear`, `boundaries`
        of the training data's present, clipped values.

    Returns:
      float32[B, n]; more columns with `piecewise_linear`.

    Raises:
      UserError: a feature that needs statistics has none.

    Source: Gorishniy et al., On Embeddings for Numerical Features in Tabular Deep Learning, NeurIPS 2022, equation 1
    and section 3.2.1; here the outer pieces are clipped, too.
    """
    if not spec.dense:
        return dense
    fill = np.array([f.default for f in spec.dense], np.float32)
    x = tf.where(tf.math.is_nan(dense), tf.zeros_like(dense) + fill, dense)
    if any(f.clip for f in spec.dense):
        low, high = np.transpose([f.clip or (-np.inf, np.inf) for f in spec.dense]).astype(np.float32)
        x = tf.clip_by_value(x, low, high)
    logs = np.array([f.transform == "log1p" for f in spec.dense])
    if logs.any():
        x = tf.where(tf.zeros_like(x, tf.bool) | logs, tf.sign(x) * tf.math.log1p(tf.abs(x)), x)
    columns = [_columns_of(f, statistics) for f in spec.dense]
    shift, scale = np.concatenate(columns).T.astype(np.float32)
    of_feature = np.repeat(np.arange(len(columns)), [len(each) for each in columns])
    is_piece = np.array([f.transform == PIECEWISE for f in spec.dense])[of_feature]
    if is_piece.any():
        x = tf.gather(x, of_feature, axis=1)
    x = (x - shift) * scale if shift.any() or (scale != 1).any() else x
    if is_piece.any():
        low, high = np.array([np.where(is_piece, 0, -np.inf), np.where(is_piece, 1, np.inf)], np.float32)
        x = tf.clip_by_value(x, low, high)
    return x


def _columns_of(feature: DenseFeature, statistics: Statistics | None) -> list[tuple[float, float]]:
    """Returns (shift, scale) of each column of a feature, for `(x - shift) * scale`."""
    if feature.transform not in FITTED:
        return [(0.0, 1.0)]
    s = (statistics or {}).get(feature.name, {})
    if not s or (feature.transform == PIECEWISE and BOUNDARIES not in s):
        raise UserError(
            f"dense feature {feature.name!r}: transform {feature.transform!r} needs the training data's statistics, "
            "and this data set has none; convert the data set again with this spec"
        )
    if feature.transform == "standardize":
        pieces = [(s["mean"], s["std"])]
    else:
        inner = s[BOUNDARIES] if feature.transform == PIECEWISE else []
        edges = sorted({s["min"], *inner, s["max"]}) if s["min"] < s["max"] else [s["min"]] * 2
        pieces = [(low, high - low) for low, high in itertools.pairwise(edges)]
    return [(low, 1 / width if width > 0 else 0.0) for low, width in pieces]
