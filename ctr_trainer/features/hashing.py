"""Keys: 64-bit hashes of sparse features' values, identical at conversion, in training and in an exported graph.

    key(slot, value) = Fingerprint64(slot + "\\x1f" + value) as int64, and 1 instead of 0

Fingerprint64 is FarmHash's hash function and depends only on the bytes. The key 0 means that there is no value. A
missing value has the key of "", or 0; see `SparseFeature.missing`. The probability that any two of n values in a slot
collide is about n^2 / 2^65: 0.03 % for 100 million values.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ctr_trainer.features.columns import BOUNDARIES, SparseFeature, Statistics
from ctr_trainer.features.host_function import host_function
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:  # TensorFlow takes seconds to import.
    import tensorflow as tf

SEPARATOR = "\x1f"


def keys(slot: str, values: pa.Array | pa.ChunkedArray, missing_has_key: bool = True) -> np.ndarray:
    """Computes the keys of one column, int64[n]. Each distinct value is hashed once.

    Args:
      values: pyarrow Array or ChunkedArray of strings, binary values, or integers, which are hashed as decimal digits.
      missing_has_key: whether "" and null have the key of ""; if False, their key is 0.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    distinct = values.dictionary
    if not (pa.types.is_binary(distinct.type) or pa.types.is_large_binary(distinct.type)):
        distinct = distinct.cast(pa.string()).cast(pa.binary())
    # The null at the end represents missing values. A dictionary may contain a null, too.
    texts = pa.concat_arrays([distinct, pa.nulls(1, distinct.type)]).fill_null(b"").to_numpy(zero_copy_only=False)
    hashed = _hasher()(texts, (slot + SEPARATOR).encode())
    if not missing_has_key:
        hashed = np.where(texts == b"", 0, hashed)
    return hashed[values.indices.cast(pa.int32()).fill_null(len(texts) - 1).to_numpy()]


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


@functools.cache
def _hasher() -> Callable[..., Any]:
    """Makes f(bytes[n], prefix of all values) -> int64[n] keys."""
    return host_function(lambda texts, prefix: _graph_hash(prefix + texts), [None], [])


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
        self.by_bucket = keys(feature.slot, pa.array([*names, ""]))
        if not feature.missing_has_row:
            self.by_bucket[-1] = 0

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
