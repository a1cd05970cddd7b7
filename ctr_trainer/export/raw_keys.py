"""Computes the keys of raw feature values in an exported graph, with stock TensorFlow operations only."""

import re
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data import lookups
from ctr_trainer.data.encoders import AROUND, CLOSING, OPENING
from ctr_trainer.export.raw_inputs import NUMBER, columns_of
from ctr_trainer.features import hashing
from ctr_trainer.features.columns import CrossFeature, SparseFeature, Statistics
from ctr_trainer.features.hashing import graph_cross_keys, graph_keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE, operation_name
from ctr_trainer.features.times import graph_dates, graph_derived

# Name of the signature, and kinds of its outputs; see `key_outputs`.
SIGNATURE = "keys"
KEYS, VALUES, SPLITS, WEIGHTS = "keys", "values", "splits", "weights"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class RawLists:
    """The keys and weights of the values of one bag or sequence.

    Args:
      feature: a feature with a combiner.
      values: string[B, N]; "" means no value, in any position.
      null_values: texts that mean "no value" if they are the only text of a row, as in a field of the source file.

    Attributes:
      keys: int64[B, N'], the keys of the values; 0 for no value and for values beyond the feature's `max_length`.
      weights: float32[B, N'], the weights of the keys that are not 0.
    """

    def __init__(self, feature: SparseFeature, values: tf.Tensor, null_values: Collection[str] = ()) -> None:
        self._feature = feature
        alone = tf.equal(tf.reduce_sum(_number(tf.not_equal(values, "")), 1, keepdims=True), 1)
        for null in filter(None, null_values):
            values = tf.where(alone & tf.equal(values, null), tf.fill(tf.shape(values), ""), values)
        weights = tf.ones_like(values, tf.float32)
        if feature.weight_separator is not None:
            values, weights = _weighted(values, feature.weight_separator)
        taken = tf.not_equal(values, "")
        if feature.max_length:
            last = feature.keeps_last
            rank = tf.cumsum(_number(taken), 1, reverse=last)
            taken &= rank <= feature.max_length
        keys = graph_keys(feature.slot, values)
        self.keys, self.weights = tf.where(taken, keys, tf.zeros_like(keys)), weights
        if feature.missing_has_row:  # The key of "" of the rows without values.
            own = graph_keys(feature.slot, tf.constant([""]))
            own = tf.where(tf.reduce_any(taken, 1, keepdims=True), tf.zeros_like(own), own)
            self.keys = tf.concat([self.keys, own], 1)
            self.weights = tf.concat([self.weights, tf.ones_like(own, tf.float32)], 1)

    def coefficients(self) -> tf.Tensor:
        """Returns float32[B, N'], the factor of each value's embedding in the bag; see `embedding/worker/lookup.py`."""
        weights = tf.where(tf.not_equal(self.keys, 0), self.weights, tf.zeros_like(self.weights))
        if self._feature.combiner == "mean":
            return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, 1, keepdims=True))
        if self._feature.combiner == "sqrtn":
            return tf.math.divide_no_nan(weights, tf.sqrt(tf.reduce_sum(tf.square(weights), 1, keepdims=True)))
        return weights

    def aligned(self) -> tf.Tensor:
        """Returns int64[B, max_length], the keys in order, padded with 0."""
        taken = tf.not_equal(self.keys, 0)
        at = tf.where(taken)
        place = tf.gather_nd(tf.cumsum(_number(taken), 1, exclusive=True), at)
        where = tf.stack([at[:, 0], tf.cast(place, tf.int64)], 1)
        shape = tf.stack([tf.shape(self.keys, tf.int64)[0], self._feature.max_length])
        keys = tf.scatter_nd(where, tf.gather_nd(self.keys, at), shape)
        return tf.ensure_shape(keys, [None, self._feature.max_length])


def _weighted(values: tf.Tensor, separator: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits texts at their last separator. Returns (values string[B, N], weights float32[B, N], 1 by default)."""
    # Texts need not be UTF-8, so the patterns use \\C, which matches any byte.
    before, after = rf"^(\C*){re.escape(separator)}\C*$", rf"^\C*{re.escape(separator)}(\C*)$"
    has_weight = tf.strings.regex_full_match(values, after)
    texts = tf.where(has_weight, tf.strings.regex_replace(values, after, r"\1"), tf.fill(tf.shape(values), "1"))
    return tf.strings.regex_replace(values, before, r"\1"), tf.strings.to_number(texts)


def _number(mask: tf.Tensor) -> tf.Tensor:
    return tf.cast(mask, tf.int32)


class RawKeys:
    """Inputs of the graph for the raw values of a spec's columns, and the numbers and keys that features make of them.

    Attributes:
      receivers: the placeholders of the requested columns, by name.
    """

    def __init__(self, spec: FeatureSpec, statistics: Statistics | None) -> None:
        self.receivers: dict[str, tf.Tensor] = {}
        self._spec, self._null_values = spec, spec.csv.null_values
        self._columns = columns_of(spec)
        self._buckets = hashing.buckets_of(spec, statistics)
        self._lists: dict[str, RawLists] = {}
        self._looked: dict[str, tf.Tensor] = {}

    def receiver(self, name: str) -> tf.Tensor:
        """Returns the input of a column: float32[B], string[B] or string[B, N]; or, of a lookup, its values."""
        if name in self._spec.looked_up:
            return self._looked_up(name)
        if name not in self.receivers:
            column = self._columns[name]
            dtype = tf.float32 if column.kind == NUMBER else tf.string
            self.receivers[name] = tf1.placeholder(dtype, [None] * (1 + column.is_list), operation_name(name))
        return self.receivers[name]

    def _looked_up(self, name: str) -> tf.Tensor:
        """Returns a column of a lookup, float32[B] or string[B], by the input of its key."""
        lookup = self._spec.looked_up[name]
        if name not in self._looked:
            hashes, values = lookups.values_of(lookup, self._spec.lookups_read[lookup])
            where = f"lookup{self._spec.lookup.index(lookup)}"
            known = _constant(f"{where}_keys", hashes)
            keys = graph_keys(lookups.SLOT, _without(self._null_values, self.receiver(lookup.key)))
            at = tf.minimum(tf.searchsorted(known, keys), len(hashes) - 1)
            is_known = tf.equal(tf.gather(known, at), keys)
            if isinstance(values, np.ndarray):
                found = tf.gather(_constant(where, values), at)
                found = tf.where(is_known[:, None], found, tf.fill(tf.shape(found), float("nan")))
                self._looked |= dict(zip(lookup.columns, tf.unstack(found, axis=1), strict=True))
            else:
                texts = _constant(where, values.fill_null(b"").to_numpy(zero_copy_only=False))
                self._looked[name] = tf.where(is_known, tf.gather(texts, at), tf.fill(tf.shape(keys), ""))
        return self._looked[name]

    def numbers(self, name: str) -> tf.Tensor:
        """Returns float32[B], the numbers of a column, of dates the seconds; NaN for all other texts."""
        values = self.receiver(name)
        if values.dtype != tf.string:
            return values
        texts = _without(self._null_values, values)
        good = tf.strings.regex_full_match(texts, _NUMBER)
        numbers = tf.strings.to_number(tf.where(good, texts, tf.fill(tf.shape(texts), "0")))
        return tf.where(good & tf.math.is_finite(numbers), numbers, tf.cast(graph_dates(texts), tf.float32))

    def singles(self, features: Sequence[SparseFeature]) -> tf.Tensor:
        """Returns int64[B, F], the keys of single-valued features."""
        texts = [f for f in features if not (f.is_bucketised or isinstance(f, CrossFeature))]
        others = [f for f in features if f.is_bucketised or isinstance(f, CrossFeature)]
        parts = []
        if texts:
            values = [self.receiver(feature.column) for feature in texts]
            parts.append(_keys_of_texts(texts, values, self._null_values))
        for feature in others:
            if isinstance(feature, CrossFeature):
                crossed = [self.singles([part])[:, 0] for part in self._spec.crossed(feature)]
                parts.append(graph_cross_keys(feature, crossed)[:, None])
            else:
                parts.append(self._buckets[feature.name].graph_keys(self.numbers(feature.column))[:, None])
        if len(parts) == 1:
            return parts[0]
        places = {feature.name: place for place, feature in enumerate([*texts, *others])}
        return tf.gather(tf.concat(parts, 1), [places[feature.name] for feature in features], axis=1)

    def flat_singles(self, features: Sequence[SparseFeature]) -> tf.Tensor:
        """Returns int64[n], the keys of single-valued features in `flat_order`, any number of keys per feature."""
        plain = [feature for feature in flat_order(features) if is_plain(feature)]
        parts = []
        if plain:
            values = [self.receiver(feature.column) for feature in plain]
            owners = tf.repeat(tf.range(len(plain)), tf.stack([tf.shape(each)[0] for each in values]))
            parts.append(_keys_of_owners(plain, _without(self._null_values, tf.concat(values, 0)), owners))
        parts += [self.singles([feature])[:, 0] for feature in flat_order(features)[len(plain) :]]
        return tf.concat(parts, 0)

    def lists(self, feature: SparseFeature) -> RawLists:
        if feature.name not in self._lists:
            raw = self.receiver(feature.column)
            raw = _split(raw, feature) if raw.shape.rank == 1 else raw
            self._lists[feature.name] = RawLists(feature, raw, self._null_values)
        return self._lists[feature.name]


def _constant(name: str, value: np.ndarray) -> tf.Tensor:
    """Returns the constant of this name in the graph. All signatures of an export share it."""
    try:
        return tf1.get_default_graph().get_tensor_by_name(f"{name}:0")
    except KeyError:
        with tf.init_scope(), tf1.name_scope(""):
            return tf.constant(value, name=name)


def _split(texts: tf.Tensor, feature: SparseFeature) -> tf.Tensor:
    """Splits string[B] into string[B, N] as `encoders.split` does, padded with ""."""
    if feature.brackets:
        texts = tf.strings.regex_replace(tf.strings.regex_replace(texts, OPENING, ""), CLOSING, "")
    values = tf.strings.split(texts, feature.separator).to_tensor("")
    return tf.strings.regex_replace(values, AROUND, "") if feature.brackets else values


def is_plain(feature: SparseFeature) -> bool:
    """Returns whether the key of a single-valued feature is the hash of its unchanged text."""
    return not (feature.is_bucketised or feature.derive or isinstance(feature, CrossFeature))


def flat_order(features: Sequence[SparseFeature]) -> list[SparseFeature]:
    """Returns features in the order of `RawKeys.flat_singles`: plain texts first, otherwise in the spec's order."""
    return sorted(features, key=lambda feature: not is_plain(feature))


def key_outputs(
    raw: RawKeys, spec: FeatureSpec, read: Collection[str], is_ranked: bool = False
) -> dict[str, tf.Tensor]:
    """Makes the outputs of the signature `keys`: the keys of a request's rows. Returns {} without sparse features.

    docs/features.md lists their dtypes and shapes under "What an exported graph takes".

    Args:
      raw: the object to which the inputs are added.
      read: names of the tower's inputs, see `receivers.RowInputs`. A feature without an input has no output.
      is_ranked: whether each input has 1 or n values. If so, `keys/dim16` is int64[any], feature after feature in
        `flat_order`.
    """
    outputs: dict[str, tf.Tensor] = {}
    for table in spec.tables:
        lists = [f for f in table.sequences if f"{SEQUENCE}/{f.name}" in read or f"{MASK}/{f.name}" in read]
        if f"{EMBEDDING}/{table.name}" in read or f"{LINEAR}/{table.name}" in read:
            lists += table.bags
            if table.single:
                flat = raw.flat_singles(table.single) if is_ranked else raw.singles(table.single)
                outputs[f"{KEYS}/{table.name}"] = flat
        for feature in lists:
            values = raw.lists(feature)
            taken = tf.not_equal(values.keys, 0)
            outputs[f"{VALUES}/{feature.name}"] = tf.boolean_mask(values.keys, taken)
            ends = tf.cumsum(tf.reduce_sum(_number(taken), 1))
            outputs[f"{SPLITS}/{feature.name}"] = tf.concat([[0], ends], 0)
            if feature.weight_separator is not None:
                outputs[f"{WEIGHTS}/{feature.name}"] = tf.boolean_mask(values.weights, taken)
    return outputs


def _keys_of_texts(
    features: Sequence[SparseFeature], values: Sequence[tf.Tensor], null_values: Collection[str]
) -> tf.Tensor:
    """Returns int64[B, F], the keys of one string[B] per feature. Texts in `null_values` are missing values."""
    texts = _without(null_values, tf.stack(values, 1))
    if any(feature.derive for feature in features):
        columns = zip(features, tf.unstack(texts, axis=1), strict=True)
        texts = tf.stack([graph_derived(c, f.derive) if f.derive else c for f, c in columns], 1)
    return _keys_of_owners(features, texts, None)


def _keys_of_owners(features: Sequence[SparseFeature], texts: tf.Tensor, owners: tf.Tensor | None) -> tf.Tensor:
    """Returns the keys of texts; "" is a missing value. `owners` or else the last dimension selects the feature."""
    keys = graph_keys([feature.slot for feature in features], texts, owners)
    if all(feature.missing_has_row for feature in features):
        return keys
    has_row = tf.constant([feature.missing_has_row for feature in features])
    has_row = has_row if owners is None else tf.gather(has_row, owners)
    return tf.where(tf.equal(texts, "") & ~has_row, tf.zeros_like(keys), keys)


def _without(null_values: Collection[str], values: tf.Tensor) -> tf.Tensor:
    for null in filter(None, null_values):
        values = tf.where(tf.equal(values, null), "", values)
    return values
