"""Fingerprint64 of many short byte strings at once, from the buffers of an Arrow column.

It is FarmHash's (farmhashna::Hash64), the function of TensorFlow's Fingerprint64 operation, for what has up to
`LONGEST` bytes: no Python object and no copy is made of a value.

Source: https://github.com/google/farmhash, src/farmhash.cc.
"""

import numba
import numpy as np
import pyarrow as pa

LONGEST = 64  # Above, FarmHash goes on otherwise.

_K0, _K1, _K2 = np.uint64(0xC3A5C85C97CB3127), np.uint64(0xB492B66FBE98F273), np.uint64(0x9AE16A3B2F90404F)
_47 = np.uint64(47)


def fingerprints(prefix, values):
    """Fingerprint64 of `prefix + value`.

    Args:
      prefix: bytes.
      values: pyarrow Array of binary or large_binary, without nulls.

    Returns:
      (int64[n], 0 where there are more than `LONGEST` bytes; bool[n] of those).
    """
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    offsets = np.frombuffer(offsets, kind)[values.offset :][: len(values) + 1] if len(values) else np.zeros(1, kind)
    data = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    hashed = np.zeros(len(values), np.uint64)
    if len(prefix) <= LONGEST:
        _hash_all(np.frombuffer(prefix, np.uint8), data, offsets, hashed)
    return hashed.view(np.int64), np.diff(offsets) + len(prefix) > LONGEST


@numba.njit(nogil=True, cache=True)
def _hash_all(prefix, data, offsets, hashed):
    text = np.empty(LONGEST, np.uint8)
    start = len(prefix)
    text[:start] = prefix
    for i in range(len(hashed)):
        first, length = offsets[i], start + offsets[i + 1] - offsets[i]
        if length > LONGEST:
            continue
        for j in range(start, length):
            text[j] = data[first + j - start]
        hashed[i] = _hash(text, length)


@numba.njit(nogil=True, cache=True)
def _hash(s, n):
    if n > 32:
        return _hash_33_to_64(s, n)
    if n > 16:
        return _hash_17_to_32(s, n)
    mul = _K2 + np.uint64(2 * n)
    if n >= 8:
        a, b = _eight(s, 0) + _K2, _eight(s, n - 8)
        return _mix(_turn(b, 37) * mul + a, (_turn(a, 25) + b) * mul, mul)
    if n >= 4:
        return _mix(np.uint64(n) + (_four(s, 0) << np.uint64(3)), _four(s, n - 4), mul)
    if n > 0:
        y = np.uint64(s[0]) + (np.uint64(s[n >> 1]) << np.uint64(8))
        z = np.uint64(n) + (np.uint64(s[n - 1]) << np.uint64(2))
        y = (y * _K2) ^ (z * _K0)
        return (y ^ (y >> _47)) * _K2
    return _K2


@numba.njit(nogil=True, cache=True)
def _hash_17_to_32(s, n):
    mul = _K2 + np.uint64(2 * n)
    a, b = _eight(s, 0) * _K1, _eight(s, 8)
    c, d = _eight(s, n - 8) * mul, _eight(s, n - 16) * _K2
    return _mix(_turn(a + b, 43) + _turn(c, 30) + d, a + _turn(b + _K2, 18) + c, mul)


@numba.njit(nogil=True, cache=True)
def _hash_33_to_64(s, n):
    mul = _K2 + np.uint64(2 * n)
    a, b = _eight(s, 0) * _K2, _eight(s, 8)
    c, d = _eight(s, n - 8) * mul, _eight(s, n - 16) * _K2
    y = _turn(a + b, 43) + _turn(c, 30) + d
    z = _mix(y, a + _turn(b + _K2, 18) + c, mul)
    e, f = _eight(s, 16) * mul, _eight(s, 24)
    g, h = (y + _eight(s, n - 32)) * mul, (z + _eight(s, n - 24)) * mul
    return _mix(_turn(e + f, 43) + _turn(g, 30) + h, e + _turn(f + a, 18) + g, mul)


@numba.njit(nogil=True, cache=True)
def _mix(u, v, mul):
    a = (u ^ v) * mul
    b = (v ^ (a ^ (a >> _47))) * mul
    return (b ^ (b >> _47)) * mul


@numba.njit(nogil=True, cache=True)
def _turn(value, bits):
    return (value >> np.uint64(bits)) | (value << np.uint64(64 - bits))


@numba.njit(nogil=True, cache=True)
def _eight(s, at):
    """-> the eight bytes from `at` on, little-endian."""
    return _four(s, at) | (_four(s, at + 4) << np.uint64(32))


@numba.njit(nogil=True, cache=True)
def _four(s, at):
    low = np.uint64(s[at]) | (np.uint64(s[at + 1]) << np.uint64(8))
    return low | (np.uint64(s[at + 2]) << np.uint64(16)) | (np.uint64(s[at + 3]) << np.uint64(24))
