"""Keys: a sparse feature's value as 64 bits, the same at conversion, in training and in an exported graph.

    key(slot, value) = Fingerprint64(slot + "\\x1f" + value) as int64, and 1 in place of 0

Fingerprint64 is FarmHash's, a function of the bytes alone. The key 0 stands for no value. A missing value hashes as the
value ""; whether it has that key or 0 is the feature's to say (`SparseFeature.missing`). Two of n values of a slot
collide with a probability of about n^2 / 2^65: for 100 million values, 0.03 %.
"""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SEPARATOR = "\x1f"


def keys(slot, values):
    """Keys of one column; each distinct value is hashed once.

    Args:
      slot: the feature's slot.
      values: pyarrow Array or ChunkedArray of strings, binary or integers (which hash as their decimal digits).

    Returns:
      int64[n].
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    distinct = values.dictionary
    if not (pa.types.is_binary(distinct.type) or pa.types.is_large_binary(distinct.type)):
        distinct = distinct.cast(pa.string()).cast(pa.binary())
    # The last entry is the missing value's; a dictionary's own null has it too.
    hashed = _hasher(slot)(np.append(distinct.fill_null(b"").to_numpy(zero_copy_only=False), b""))
    return hashed[pc.fill_null(values.indices, len(hashed) - 1).to_numpy(zero_copy_only=False)]


def graph_keys(slot, values):
    """The same function as TensorFlow ops: string tensor of any shape -> int64 tensor of that shape."""
    import tensorflow as tf

    flat = tf.reshape(values, [-1])  # tf.fingerprint keeps the first dimension only
    prints = tf.fingerprint(tf.strings.join([tf.constant(slot + SEPARATOR), flat]), method="farmhash64")
    key = tf.bitcast(prints, tf.int64)
    return tf.reshape(tf.where(tf.equal(key, 0), tf.ones_like(key), key), tf.shape(values))


@functools.cache
def _hasher(slot):
    """-> `graph_keys` of a slot as a function of NumPy arrays of bytes.

    It has a graph and session of its own, so that it works within any graph and with eager execution on or off.
    """
    import tensorflow as tf

    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        values = tf.compat.v1.placeholder(tf.string, [None])
        fetch = graph_keys(slot, values)
    config = tf.compat.v1.ConfigProto(
        device_count={"GPU": 0}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    session = tf.compat.v1.Session(graph=graph, config=config)
    return lambda array: session.run(fetch, {values: array})
