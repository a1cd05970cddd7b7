"""The hash of a key, which says its shard, its place in the index and its initial row."""

import numba
import numpy as np
from numba import types

KEYS = types.Array(types.int64, 1, "C", readonly=True)
_SHARDS_OUT = types.Array(types.int32, 1, "C")


@numba.njit(types.uint64(types.uint64), nogil=True, cache=True)
def mix(value):
    """The finalizer of SplitMix64, a bijection of 64-bit integers (Steele et al., OOPSLA 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(types.void(KEYS, types.int64, _SHARDS_OUT), nogil=True, cache=True)
def shard_of(keys, shards, out):
    """out[i] = the shard that owns keys[i]."""
    for i in range(keys.size):
        out[i] = np.int32(mix(np.uint64(keys[i])) % np.uint64(shards))
