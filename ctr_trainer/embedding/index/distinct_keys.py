"""The distinct ones among many keys."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_hash import KEYS, mix

_NUMBERS_OUT = types.Array(types.int32, 1, "C")
_KEYS_OUT = types.Array(types.int64, 1, "C")


class DistinctKeys:
    """Numbers distinct keys 0, 1, 2, ... in the order of first appearance; the key 0 ("no value") has the number -1.

    A hash table for one batch, from which nothing goes and which never grows: that is faster than an `Index`, by a
    third on a batch of 26,624 keys of which 8,600 are distinct.

    Args:
      most: how many keys will be asked for.
    """

    def __init__(self, most):
        # A power of two, at most half of it taken.
        bits = max(2 * most - 1, 1).bit_length()
        self._shift = np.uint64(64 - bits)
        self._heads = np.full(1 << bits, -1, np.int32)
        self._keys = np.empty(most, np.int64)
        self._count = 0

    @property
    def keys(self):
        """int64[U], in the order of their numbers, a copy."""
        return self._keys[: self._count].copy()

    def numbers(self, keys):
        """int64[n] -> int32[n]: the number of each, the next one for a key that comes for the first time."""
        numbers = np.empty(len(keys), np.int32)
        keys = np.ascontiguousarray(keys, np.int64)
        self._count = _number(keys, self._heads, self._shift, self._keys, self._count, numbers)
        return numbers


def distinct(parts):
    """A list of int64 arrays -> int64[U]: the distinct keys of them all in the order of first appearance, without 0."""
    if len(parts) == 1:
        return parts[0]
    found = DistinctKeys(sum(map(len, parts)))
    for part in parts:
        found.numbers(part)
    return found.keys


def positions_of(unique, keys):
    """-> int64[n]: for each of `keys` its place in `unique`, distinct keys among which it is."""
    found = DistinctKeys(len(unique) + len(keys))
    found.numbers(unique)
    return found.numbers(keys).astype(np.int64)


@numba.njit(types.int64(KEYS, _NUMBERS_OUT, types.uint64, _KEYS_OUT, types.int64, _NUMBERS_OUT), nogil=True, cache=True)
def _number(wanted, heads, shift, keys, count, numbers):
    """numbers[i] = the place of wanted[i] among `keys`, whose first `count` are set. -> how many are set then

    Open addressing with linear probing: heads[h] is the number of a key whose hash begins with h, or that found its
    place taken; -1 where there is none.
    """
    mask = np.uint64(heads.size - 1)
    for i in range(wanted.size):
        key = wanted[i]
        if key == 0:
            numbers[i] = -1
            continue
        head = mix(np.uint64(key)) >> shift
        while heads[head] >= 0 and keys[heads[head]] != key:
            head = (head + np.uint64(1)) & mask
        if heads[head] < 0:
            heads[head] = count
            keys[count] = key
            count += 1
        numbers[i] = heads[head]
    return count
