"""Passes binary values from Arrow to TensorFlow as serialized tf.train.Examples, without a Python object per value.

An Example has one feature of bytes, `FEATURE`. Each value of the feature is the prefix of a column, then a value of
the column. TensorFlow's `parse_single_example` makes a string tensor of the feature.

    Example = 0a n Features,  Features = 0a n Entry,  Entry = 0a 1 FEATURE 12 n Feature
    Feature = 0a n BytesList,  BytesList = (0a n prefix value)*             n: the bytes that follow, as a varint

Source: protobuf's wire format; tensorflow/core/example/example.proto and feature.proto.
"""

import numba
import numpy as np
import pyarrow as pa

FEATURE = "v"
_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"  # Tags of fields that hold bytes or a message.
_LONGEST_VARINT = 5  # Bytes of a varint below 2^35.
_ROOM = 2**20  # Bytes: few enough for the cache, and enough that the cost of calling TensorFlow is small.


def messages(columns, room=_ROOM):
    """Yields serialized Examples of all columns' values in order, each value behind its column's prefix.

    Args:
      columns: (prefix, pyarrow Array of binary or large binary) per column; null counts as b"".
      room: bytes of the values of a message; a single longer value gets a message of its own. Protobuf's limit is 2^31.
    """
    space, used = np.empty(room, np.uint8), 0
    for prefix, values in columns:
        prefix, (offsets, data), at = np.frombuffer(prefix, np.uint8), _buffers(values), 0
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


def lengths(values):
    """-> int[n], the length of each value in bytes; 0 for null."""
    return np.diff(_buffers(values)[0])


def _buffers(values):
    """-> (offsets int[n + 1], the uint8 array into which they point)."""
    if values.null_count:
        values = values.fill_null(b"")  # Arrow's buffer may hold any bytes at the place of a null.
    _, offsets, data = values.buffers()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets, data = np.frombuffer(offsets, width), np.frombuffer(data or b"", np.uint8)
    for array in (offsets, data):
        array.flags.writeable = False  # All arrays have one type then, for which `_write` is compiled once.
    return offsets[values.offset : values.offset + len(values) + 1], data


def _message(bytes_list):
    header = b""
    # From the innermost message to the outermost.
    for before in (_FIELD_1, _FIELD_1 + b"\x01" + FEATURE.encode() + _FIELD_2, _FIELD_1, _FIELD_1):
        header = before + _varint(len(header) + len(bytes_list)) + header
    return b"".join((header, bytes_list))


def _varint(number):
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


@numba.njit(nogil=True, cache=True)
def _write(prefix, offsets, data, at, space, used):
    """Writes values, from number `at` on, behind the first `used` bytes. -> (first value without room, bytes used)"""
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
