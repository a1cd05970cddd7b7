"""Keys: the 64-bit hashes of sparse features' values, the same at conversion, in training and in an exported graph.

    key(slot, value) = Fingerprint64(slot + "\\x1f" + value) as int64, and 1 in place of 0

Fingerprint64 is a function of FarmHash and depends on the bytes alone. The key 0 stands for no value. The key of a
missing value is that of the value "", or 0, as `SparseFeature.missing` says. The probability that any two of n values
of a slot collide is about n^2 / 2^65: for 100 million values, 0.03 %.
"""

import functools

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.features import bytes_example

SEPARATOR = "\x1f"


def keys(slot, values, missing_has_key=True):
    """Computes the keys of one column. Each distinct value is hashed once.

    Args:
      slot: slot of the feature.
      values: pyarrow Array or ChunkedArray of strings, binary or integers, which hash as their decimal digits.
      missing_has_key: whether "" and null have the key of ""; if False, their key is 0.

    Returns:
      int64[n].
    """
    return keys_of_columns([(slot, values, missing_has_key)])[0]


def keys_of_columns(columns):
    """Computes the keys of several columns of n rows, as `keys` does for each, in fewer calls of TensorFlow.

    Args:
      columns: (slot, values, missing_has_key) per column.

    Returns:
      int64[columns, n].
    """
    values = [_with_dictionary(column) for _, column, _ in columns]
    texts = [_texts(column.dictionary) for column in values]
    prefixes = [(slot + SEPARATOR).encode() for slot, _, _ in columns]
    hashed = [_hasher()(message) for message in bytes_example.messages(zip(prefixes, texts, strict=True))]
    hashed, start = np.concatenate(hashed), 0
    # One array for all columns is large enough for huge pages. With small pages, zeroing takes longer than the lookups.
    taken = np.empty((len(columns), len(values[0])), np.int64)
    for row, column, distinct, (_, _, missing_has_key) in zip(taken, values, texts, columns, strict=True):
        of = hashed[start : (start := start + len(distinct))]
        if not missing_has_key:
            of[bytes_example.lengths(distinct) == 0] = 0
        _take(of, pc.fill_null(column.indices.cast(pa.int32()), len(of) - 1).to_numpy(), row)
    return taken


def _with_dictionary(values):
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()


def _texts(distinct):
    """-> the values as binary, then a null for the missing value; a null in a dictionary means the same."""
    if not (pa.types.is_binary(distinct.type) or pa.types.is_large_binary(distinct.type)):
        distinct = distinct.cast(pa.string()).cast(pa.binary())
    return pa.concat_arrays([distinct, pa.nulls(1, distinct.type)])


def graph_keys(slots, values):
    """Computes keys by TensorFlow ops.

    Args:
      slots: the slot of all values, or a list with one slot per place in the last dimension of the values.
      values: string tensor of any shape.

    Returns:
      int64 tensor of the shape of the values.
    """
    import tensorflow as tf

    prefixes = tf.constant(np.char.add(slots, SEPARATOR))
    # `tf.add`, because tf.strings.join does not broadcast. tf.fingerprint keeps the first dimension only.
    texts = tf.reshape(tf.raw_ops.Add(x=prefixes, y=values), [-1])
    return tf.reshape(_graph_hash(texts), tf.shape(values))


def _graph_hash(texts):
    """string[n] -> int64[n], by TensorFlow ops."""
    import tensorflow as tf

    key = tf.bitcast(tf.fingerprint(texts, method="farmhash64"), tf.int64)
    return tf.where(tf.equal(key, 0), tf.ones_like(key), key)


@functools.cache
def _hasher():
    """-> f(message) -> int64 keys of the values of a `bytes_example` message.

    The function has a graph and session of its own, so that it works within any graph, with eager execution on or off.
    """
    import tensorflow as tf

    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        message = tf.compat.v1.placeholder(tf.string, [])
        kind = tf.io.RaggedFeature(tf.string)
        fetch = _graph_hash(tf.io.parse_single_example(message, {bytes_example.FEATURE: kind})[bytes_example.FEATURE])
    # -1 computes in the calling thread, so that threads that hash at a time do not wait for each other.
    config = tf.compat.v1.ConfigProto(
        device_count={"GPU": 0}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1
    )
    return tf.compat.v1.Session(graph=graph, config=config).make_callable(fetch, [message])


@numba.njit(nogil=True, cache=True)
def _take(table, places, out):
    """Sets out = table[places], without first widening the places as NumPy would."""
    for i in range(len(places)):
        out[i] = table[places[i]]
