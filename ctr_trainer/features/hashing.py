"""Keys: 64-bit hashes of sparse features' values, identical at conversion, in training and in an exported graph.

    key(slot, value) = Fingerprint64(slot + "\\x1f" + value) as int64, and 1 instead of 0

    key(cross of k_1 ... k_n) = h_n as int64, and 1 instead of 0; 0 if a k_i is 0
    h_i = mix(h_{i-1} xor k_i), and h_0 is the key of the cross's slot and the value ""

mix is the finalizer of MurmurHash3, a permutation of 64-bit numbers. With `max_rows`, the key is mix(h_0 xor (h_n mod
max_rows)). The k_i are the keys of the values, so the values "a_b", "c" and "a", "b_c" have different keys.

Fingerprint64 is FarmHash's hash function and depends only on the bytes. The key 0 means that there is no value. A
missing value has the key of "", or 0; see `SparseFeature.missing`. The probability that any two of n values in a slot
collide is about n^2 / 2^65: 0.03 % for 100 million values.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.features.columns import BOUNDARIES, CrossFeature, SparseFeature, Statistics
from ctr_trainer.features.host_function import host_function
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:  # TensorFlow takes seconds to import.
    import tensorflow as tf

SEPARATOR = "\x1f"
_EXACT = 2.0**53  # float64 represents all whole numbers up to this one.
_HIGH, _FACTORS = np.uint64(1 << 33), (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))


def keys(slot: str, values: pa.Array | pa.ChunkedArray, missing_has_key: bool = True) -> np.ndarray:
    """Computes the keys of one column, int64[n]. Each distinct value is hashed once.

    Args:
      values: pyarrow Array or ChunkedArray of strings, binary values, or numbers, which are hashed as `as_bytes`.
      missing_has_key: whether "" and null have the key of ""; if False, their key is 0.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return keys_of_columns([Unhashed(slot, values, missing_has_key)])[0]


class Unhashed(NamedTuple):
    """A column to hash, see `keys`."""

    slot: str
    values: pa.Array
    missing_has_key: bool = True


def keys_of_columns(columns: Sequence[Unhashed]) -> list[np.ndarray]:
    """Computes the `keys` of several columns. For few rows, this is faster than one call of `keys` per column."""
    places, texts = [], []
    for slot, values, _ in columns:
        values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        distinct, prefix = values.dictionary, f"{slot}{SEPARATOR}".encode()
        distinct = as_bytes(distinct)
        if distinct.null_count:
            distinct = distinct.fill_null(b"")
        whole = pc.binary_join_element_wise(prefix, distinct, b"").to_numpy(zero_copy_only=False)
        texts.append(np.append(whole, prefix))  # The text at the end is that of a missing value.
        indices = values.indices.cast(pa.int32())
        places.append(indices.fill_null(len(distinct)) if indices.null_count else indices)
    hashed = np.split(host_function(_graph_hash)(np.concatenate(texts)), np.cumsum([len(each) for each in texts])[:-1])
    for column, of_column, own in zip(columns, hashed, texts, strict=True):
        if not column.missing_has_key:
            of_column[own == own[-1]] = 0
    return [of_column[where.to_numpy()] for of_column, where in zip(hashed, places, strict=True)]


def as_bytes(values: pa.Array) -> pa.Array:
    """Returns values as text: integers, and floats without a fraction, as digits, other floats in shortest form.

    A NaN is missing, as null is.
    """
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return values
    if pa.types.is_floating(kind):
        values = values.cast(pa.float32()) if pa.types.is_float16(kind) else values
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        whole = pc.and_(pc.equal(values, pc.trunc(values)), pc.less(pc.abs(values), _EXACT))
        digits = pc.if_else(whole, values, pa.scalar(0, values.type)).cast(pa.int64()).cast(pa.string())
        return pc.if_else(whole, digits, values.cast(pa.string())).cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def graph_keys(slots: str | Sequence[str], values: "tf.Tensor", owners: "tf.Tensor | None" = None) -> "tf.Tensor":
    """Computes keys with TensorFlow operations: an int64 tensor with the shape of the string tensor `values`.

    Args:
      slots: the slot of all values, or a list with one slot per index of the last dimension of the values.
      owners: int tensor with the shape of the values, the index of each value's slot in the list; None for the default.
    """
    import tensorflow as tf

    prefixes = tf.constant(np.char.add(slots, SEPARATOR))
    prefixes = prefixes if owners is None else tf.gather(prefixes, owners)
    # Add, because tf.strings.join does not broadcast; flat, because tf.fingerprint keeps only the first dimension.
    texts = tf.reshape(tf.raw_ops.Add(x=prefixes, y=values), [-1])
    return tf.reshape(_graph_hash(texts), tf.shape(values))


def _graph_hash(texts: "tf.Tensor") -> "tf.Tensor":
    """Hashes string[n] to int64[n] with TensorFlow operations."""
    import tensorflow as tf

    key = tf.bitcast(tf.fingerprint(texts, method="farmhash64"), tf.int64)
    return tf.where(tf.equal(key, 0), tf.ones_like(key), key)


def cross_keys(feature: CrossFeature, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Computes the keys of a cross, int64[n], from the keys of the features that it combines."""
    key = _crossed(feature, [part.view(np.uint64) for part in parts]).view(np.int64)
    return np.where(np.all(parts, axis=0), np.where(key == 0, 1, key), 0)


def graph_cross_keys(feature: CrossFeature, parts: "Sequence[tf.Tensor]") -> "tf.Tensor":
    """Computes the same keys as `cross_keys` with TensorFlow operations. A part of one key is for all rows."""
    import tensorflow as tf

    key = tf.bitcast(_crossed(feature, [tf.bitcast(part, tf.uint64) for part in parts]), tf.int64)
    key = tf.where(tf.equal(key, 0), tf.ones_like(key), key)
    for part in parts:
        key = tf.where(tf.equal(part, 0), tf.zeros_like(part), key)
    return key


def _crossed(feature: CrossFeature, parts: Sequence[Any]) -> Any:
    """Returns the keys of a cross as uint64, for NumPy arrays and TensorFlow tensors of uint64."""
    start = keys(feature.slot, pa.array([""])).view(np.uint64)[0]
    key = functools.reduce(lambda key, part: _mix(part ^ key), parts, start)
    return _mix(key % np.uint64(feature.max_rows) ^ start) if feature.max_rows else key


def _mix(key: Any) -> Any:
    for factor in _FACTORS:
        key = (key ^ key // _HIGH) * factor
    return key ^ key // _HIGH


class Buckets:
    """The keys of one bucketised feature.

        bucket(v) = number of boundaries <= v, as in tf.raw_ops.Bucketize    key = hash(slot, bucket number)

    A missing number has no bucket. Its key is 0, or the key of the value "" if missing values have a row.

    Raises:
      UserError: the feature has `quantiles`, and the statistics have no boundaries for it.
    """

    def __init__(self, feature: SparseFeature, statistics: Statistics | None) -> None:
        boundaries = feature.buckets
        if boundaries is None:
            if statistics is None or BOUNDARIES not in statistics.get(feature.name, {}):
                raise UserError(
                    f"sparse feature {feature.name!r}: 'quantiles' needs boundaries that conversion fits to the "
                    "training data, and this data set has none; convert the data set again with this spec"
                )
            boundaries = statistics[feature.name][BOUNDARIES]
        self.boundaries = np.array(boundaries, np.float32)
        names = [str(number) for number in range(len(self.boundaries) + 1)]
        # The last key is for a missing number.
        self.by_bucket = keys(feature.slot, pa.array([*names, ""]), feature.missing_has_row)

    def keys(self, values: np.ndarray) -> np.ndarray:
        """Returns the keys, int64[n], of float32[n] numbers; NaN is a missing number."""
        buckets = np.searchsorted(self.boundaries, values, side="right")
        return self.by_bucket[np.where(np.isnan(values), len(self.by_bucket) - 1, buckets)]

    def graph_keys(self, values: "tf.Tensor") -> "tf.Tensor":
        """Computes the same int64 keys as `keys` with TensorFlow operations, from a float32 tensor."""
        import tensorflow as tf

        missing = tf.fill(tf.shape(values), len(self.by_bucket) - 1)
        buckets = tf.raw_ops.Bucketize(input=values, boundaries=self.boundaries.tolist())
        return tf.gather(tf.constant(self.by_bucket), tf.where(tf.math.is_nan(values), missing, buckets))


def buckets_of(spec: FeatureSpec, statistics: Statistics | None) -> dict[str, Buckets]:
    """Returns a dict of feature name -> Buckets for the bucketised features of a spec."""
    return {feature.name: Buckets(feature, statistics) for feature in spec.bucketised}
