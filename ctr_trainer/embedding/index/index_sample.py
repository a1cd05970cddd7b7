"""Compiled loop of the hash index: a random sample of the keys, namely those whose hashes lie in a range.

The index is in the order of the hashes. So a range of hashes is a run of buckets, and the time to find its keys grows
with their number only.
"""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.cpu_prefetch import AHEAD, prefetch
from ctr_trainer.embedding.index.index_kernels import BUCKETS, KEYS_OUT, after, home_of, mask_of
from ctr_trainer.embedding.index.key_hash import KEYS, mix

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@numba.njit(nogil=True, cache=True)
def _sample(buckets, keys, start, width, slots, count):
    size, mask = np.uint64(buckets.size), mask_of(buckets)
    homes = min(((width * size) >> _HALF) + np.uint64(2), size)
    bucket, visited = home_of(start << _HALF, buckets), np.uint64(0)
    # An entry may lie behind its home bucket, up to the next empty bucket.
    while visited < size and (visited < homes or buckets[bucket] != 0):
        ahead = bucket + np.uint64(AHEAD)
        if ahead < size:
            prefetch(keys, (np.uint64(buckets[ahead]) & mask) - np.uint64(1))
        if buckets[bucket] != 0:
            slot = (np.uint64(buckets[bucket]) & mask) - np.uint64(1)
            if (((mix(np.uint64(keys[slot])) >> _HALF) - start) & _LOW) < width:
                if count < slots.size:
                    slots[count] = slot
                count += 1
        bucket = after(bucket, size)
        visited += np.uint64(1)
    return count


@numba.njit(types.int64(BUCKETS, BUCKETS, KEYS, types.uint64, types.uint64, KEYS_OUT), nogil=True, cache=True)
def sample(buckets, old, keys, start, width, slots):
    """Fills `slots` with the slots of the keys for which (high half of the hash - start) modulo 2**32 is below `width`.

    Returns:
      the number of these keys, even if `slots` has room for fewer.
    """
    count = _sample(buckets, keys, start, width, slots, 0)
    return _sample(old, keys, start, width, slots, count) if old.size else count
