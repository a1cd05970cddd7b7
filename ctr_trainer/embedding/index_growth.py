"""Compiled loops of the hash index: its entries move to larger buckets.

The index grows without a pause: the entries move to the larger buckets a few for each key that comes. A home keeps
the order of the hashes, so they move in that order, in whole clusters (runs of taken buckets), from an empty bucket on
around the ring; then a key's home says whether it has moved, and each key is looked for in one place only.
"""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index_kernels import (
    BUCKETS,
    BUCKETS_OUT,
    OLD,
    SIZE,
    after,
    entry_of,
    home_of,
    mask_of,
)
from ctr_trainer.embedding.key_hash import KEYS, mix
from ctr_trainer.embedding.prefetch import AHEAD, prefetch


@numba.njit(types.int64(BUCKETS), nogil=True, cache=True)
def first_empty(buckets):
    """-> the first empty bucket."""
    bucket = 0
    while buckets[bucket] != 0:
        bucket += 1
    return bucket


@numba.njit(nogil=True, cache=True)
def _enter(buckets, mask, hashed, slot):
    """Enters a slot whose key has none."""
    bucket = home_of(hashed, buckets)
    while buckets[bucket] != 0:
        bucket = after(bucket, np.uint64(buckets.size))
    buckets[bucket] = entry_of(hashed, mask, slot)


@numba.njit(types.int64(BUCKETS_OUT, *OLD, KEYS, SIZE), nogil=True, cache=True)
def move(buckets, old, first, moved, keys, most):
    """Moves the entries of `most` old buckets, and of the rest of the last one's cluster. -> moved"""
    mask, old_mask, size = mask_of(buckets), mask_of(old), np.uint64(old.size)
    bucket, most = np.uint64((first + moved) % old.size), moved + most
    while moved < old.size and (moved < most or old[bucket] != 0):
        ahead = bucket + np.uint64(AHEAD)
        if ahead < size:
            prefetch(keys, (np.uint64(old[ahead]) & old_mask) - np.uint64(1))
        if old[bucket] != 0:
            slot = (np.uint64(old[bucket]) & old_mask) - np.uint64(1)
            _enter(buckets, mask, mix(np.uint64(keys[slot])), slot)
            old[bucket] = 0
        bucket = after(bucket, size)
        moved += 1
    return moved
