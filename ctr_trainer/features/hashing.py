"""Keys: 64-bit hashes of sparse features' values, identical at conversion, in training and in an exported graph.

    key(slot, value) = Fingerprint64(slot + "\\x1f" + value) as int64, and 1 instead of 0

Fingerprint64 is FarmHash's hash function and depends only on the bytes. The key 0 means that there is no value. A
missing value has the key of "", or 0; see `SparseFeature.missing`. The probability that any two of n values in a slot
collide is about n^2 / 2^65: 0.03 % for 100 million values.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.features.columns import BOUNDARIES, SparseFeature, Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:  # TensorFlow takes seconds to import.
    import tensorflow as tf

EXAMPLE_FEATURE = "v"
_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"  # Tags of fields that hold bytes or a message.
_LONGEST_VARINT = 5  # Bytes of a varint below 2^35.
_ROOM = 2**20  # Bytes: small enough for the cache, large enough that the overhead of calling TensorFlow is small.
SEPARATOR = "\x1f"


def serialized_examples(columns: Iterable[tuple[bytes, pa.Array]], room: int = _ROOM) -> Iterator[bytes]:
    """Yields serialized Examples with the values of all columns in order. Each value follows its column's prefix.

    In this form, values pass from Arrow to TensorFlow without a Python object per value. An Example has one bytes
    feature, `EXAMPLE_FEATURE`, which TensorFlow's `parse_single_example` parses to a string tensor.

        Example = 0a n Features,  Features = 0a n Entry,  Entry = 0a 1 EXAMPLE_FEATURE 12 n Feature
        Feature = 0a n BytesList,  BytesList = (0a n prefix value)*         n: number of bytes that follow, a varint

    Source: protobuf's wire format; tensorflow/core/example/example.proto and feature.proto.

    Args:
      columns: (prefix, pyarrow Array of binary or large binary) per column; null is written as b"".
      room: largest number of bytes of the values in a message. A longer value gets its own message. Protobuf's limit
        is 2^31.
    """
    space, used = np.empty(room, np.uint8), 0
    for text, values in columns:
        prefix, (offsets, data), at = np.frombuffer(text, np.uint8), _buffers(values), 0
        while True:
            at, used = _write(prefix, offsets, data, at, space, used)
            if at == len(values):
                break
            if used:
                yield _message(space[:used])
                used = 0
            else:
                space = np.empty(len(prefix) + int(offsets[at + 1] - offsets[at]) + 1 + _LONGEST_VARINT, np.uint8)
    if used:
        yield _message(space[:used])


def byte_lengths(values: pa.Array) -> np.ndarray:
    """Returns int[n], the length of each value in bytes; 0 for null."""
    return np.diff(_buffers(values)[0])


def _buffers(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns (offsets int[n + 1], data uint8). The offsets are positions in the data."""
    if values.null_count:
        values = values.fill_null(b"")  # Arrow's buffer may contain any bytes for a null.
    _, offsets, data = values.buffers()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets, data = np.frombuffer(offsets, width), np.frombuffer(data or b"", np.uint8)
    for array in (offsets, data):
        array.flags.writeable = False  # All arrays get the same Numba type, so `_write` is compiled once.
    return offsets[values.offset : values.offset + len(values) + 1], data


def _message(bytes_list: np.ndarray) -> bytes:
    header = b""
    # From the innermost message to the outermost.
    for before in (_FIELD_1, _FIELD_1 + b"\x01" + EXAMPLE_FEATURE.encode() + _FIELD_2, _FIELD_1, _FIELD_1):
        header = before + _varint(len(header) + len(bytes_list)) + header
    return header + bytes_list.tobytes()


def _varint(number: int) -> bytes:
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


@numba.njit(nogil=True, cache=True)
def _write(
    prefix: np.ndarray, offsets: np.ndarray, data: np.ndarray, at: int, space: np.ndarray, used: int
) -> tuple[int, int]:
    """Writes values from index `at`. Returns (index of the first value that did not fit, number of used bytes)."""
    while at < len(offsets) - 1:
        start, length = offsets[at], offsets[at + 1] - offsets[at]
        left = len(prefix) + length
        if used + 1 + _LONGEST_VARINT + left > len(space):
            break
        space[used] = _FIELD_1[0]
        used += 1
        while left > 127:
            space[used] = left & 127 | 128
            left >>= 7
            used += 1
        space[used] = left
        used += 1
        for i in range(len(prefix)):
            space[used + i] = prefix[i]
        used += len(prefix)
        for i in range(length):
            space[used + i] = data[start + i]
        used += length
        at += 1
    return at, used


def keys(slot: str, values: pa.Array | pa.ChunkedArray, missing_has_key: bool = True) -> np.ndarray:
    """Computes the keys of one column, int64[n]. Each distinct value is hashed once.

    Args:
      values: pyarrow Array or ChunkedArray of strings, binary values, or integers, which are hashed as decimal digits.
      missing_has_key: whether "" and null have the key of ""; if False, their key is 0.
    """
    return keys_of_columns([(slot, values, missing_has_key)])[0]


def keys_of_columns(columns: Sequence[tuple[str, pa.Array | pa.ChunkedArray, bool]]) -> np.ndarray:
    """Computes `keys` for each (slot, values, missing_has_key) as int64[columns, n], with fewer TensorFlow calls."""
    values = [_with_dictionary(column) for _, column, _ in columns]
    texts = [_texts(column.dictionary) for column in values]
    prefixes = [(slot + SEPARATOR).encode() for slot, _, _ in columns]
    messages = serialized_examples(zip(prefixes, texts, strict=True))
    hashed, start = np.concatenate([_hasher()(message) for message in messages]), 0
    # One array for all columns is large enough for huge pages. Zeroing small pages takes longer than the lookups.
    taken = np.empty((len(columns), len(values[0])), np.int64)
    for row, column, distinct, (_, _, missing_has_key) in zip(taken, values, texts, columns, strict=True):
        of = hashed[start : (start := start + len(distinct))]
        if not missing_has_key:
            of[byte_lengths(distinct) == 0] = 0
        _take(of, pc.fill_null(column.indices.cast(pa.int32()), len(of) - 1).to_numpy(), row)
    return taken


def _with_dictionary(values: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()


def _texts(distinct: pa.Array) -> pa.Array:
    """Returns the values as binary, followed by a null for missing values. A dictionary may contain a null, too."""
    if not (pa.types.is_binary(distinct.type) or pa.types.is_large_binary(distinct.type)):
        distinct = distinct.cast(pa.string()).cast(pa.binary())
    return pa.concat_arrays([distinct, pa.nulls(1, distinct.type)])


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
def _hasher() -> Callable[[bytes], np.ndarray]:
    """Makes a function that hashes the values of a message of `serialized_examples` to int64 keys.

    The function has its own graph and session, so it works within any graph, with eager execution on or off.
    """
    import tensorflow as tf

    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        message = tf.compat.v1.placeholder(tf.string, [])
        kind = tf.io.RaggedFeature(tf.string)
        fetch = _graph_hash(tf.io.parse_single_example(message, {EXAMPLE_FEATURE: kind})[EXAMPLE_FEATURE])
    # With -1, the calling thread runs the operations, so several threads hash concurrently.
    config = tf.compat.v1.ConfigProto(
        device_count={"GPU": 0}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1
    )
    return tf.compat.v1.Session(graph=graph, config=config).make_callable(fetch, [message])


@numba.njit(nogil=True, cache=True)
def _take(table: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """Sets out = table[places]. Unlike NumPy, it does not convert the places to int64 first."""
    for i in range(len(places)):
        out[i] = table[places[i]]


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
