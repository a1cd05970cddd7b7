"""Compiled loops over ranges of the index's buckets: growth, random samples of the keys, and removal.

The index grows incrementally: each new key moves a few entries to the new buckets. Home buckets are in the order of the
hashes, so the entries move in that order, in whole clusters (runs of taken buckets), from an empty bucket on around the
ring. The home of a key then shows whether its entry has moved, and a search reads only one of the two arrays.

A sample consists of the keys whose hashes lie in a range. The index is in the order of the hashes, so a range of hashes
is a range of buckets, and the time to find its keys depends only on their number.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import (
    BLOCK,
    BUCKETS,
    BUCKETS_OUT,
    KEYS_OUT,
    OLD,
    SIZE,
    after,
    distance,
    entry_of,
    home_of,
    is_in_old,
    mask_of,
    probe,
)
from ctr_trainer.embedding.index.key_kernels import AHEAD, KEYS, Int, kernel, mix, prefetch

# The number of empty buckets that suffice before the first bucket to move, and how many buckets are searched for it.
_WIDE_GAP, _SEARCHED = 16, 1 << 20
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@kernel(types.int64(BUCKETS))
def end_of_gap(buckets: np.ndarray) -> Int:
    """Returns the bucket where the move begins: the last bucket of the first run of 16 empty buckets.

    Keys that are added during the move may enter the cluster that moves last. If that cluster grows beyond the bucket
    that moved first, all entries have to move at once. The empty buckets between the two prevent this: the keys of one
    growth fill 16 of them less than once in 10**9 growths. With three quarters of the buckets taken, one bucket in
    `4 * 2.1**(n - 1)` begins a run of n empty buckets, so 300,000 buckets have a run of 16. If the first million
    buckets have no such run, the move begins at their longest run.
    """
    longest, length, end = 0, 0, 0
    for bucket in range(min(buckets.size, _SEARCHED)):
        length = length + 1 if buckets[bucket] == 0 else 0
        if length > longest:
            longest, end = length, bucket
            if length == _WIDE_GAP:
                break
    return end


@kernel()
def _enter(buckets: np.ndarray, mask: Int, hashed: Int, slot: Int) -> None:
    """Enters a slot whose key has no entry yet."""
    bucket = home_of(hashed, buckets)
    while buckets[bucket] != 0:
        bucket = after(bucket, np.uint64(buckets.size))
    buckets[bucket] = entry_of(hashed, mask, slot)


@kernel(types.int64(BUCKETS_OUT, *OLD, KEYS, SIZE))
def move(buckets: np.ndarray, old: np.ndarray, first: Int, moved: Int, keys: np.ndarray, most: Int) -> int:
    """Moves the entries of `most` old buckets, then up to the end of the cluster; returns the buckets moved so far."""
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


@kernel()
def _sample(buckets: np.ndarray, keys: np.ndarray, start: Int, width: Int, slots: np.ndarray, count: Int) -> Int:
    size, mask = np.uint64(buckets.size), mask_of(buckets)
    homes = min(((width * size) >> _HALF) + np.uint64(2), size)
    bucket, visited = home_of(start << _HALF, buckets), np.uint64(0)
    # An entry may lie after its home bucket, before the next empty bucket.
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


@kernel(types.int64(BUCKETS, BUCKETS, KEYS, types.uint64, types.uint64, types.uint64, KEYS_OUT))
def sample(
    buckets: np.ndarray, old: np.ndarray, keys: np.ndarray, start: Int, width: Int, ranges: Int, slots: np.ndarray
) -> int:
    """Fills `slots` with the slots of the keys of which the high half of the hash is in one of some ranges.

    There are `ranges` of them, each of `width` hashes, at equal distances modulo 2**32; one begins at `start`. Returns
    the number of these keys, even if `slots` has room for fewer.
    """
    count, distance = 0, (_LOW + np.uint64(1)) // ranges
    for _ in range(ranges):
        count = _sample(buckets, keys, start, width, slots, count)
        if old.size:
            count = _sample(old, keys, start, width, slots, count)
        start = (start + distance) & _LOW
    return count


@kernel()
def _remove(buckets: np.ndarray, mask: Int, keys: np.ndarray, key: Int, hashed: Int) -> Int:
    """Removes a key and returns the slot that it had, or -1."""
    size = np.uint64(buckets.size)
    slot, gap = probe(buckets, mask, keys, key, hashed, home_of(hashed, buckets))
    if slot < 0:
        return slot
    keys[slot] = 0
    bucket = after(gap, size)
    while buckets[bucket] != 0:
        other = (np.uint64(buckets[bucket]) & mask) - np.uint64(1)
        home = home_of(mix(np.uint64(keys[other])), buckets)
        if distance(home, bucket, size) >= distance(gap, bucket, size):  # A probe would end at the gap.
            buckets[gap] = buckets[bucket]
            gap = bucket
        bucket = after(bucket, size)
    buckets[gap] = np.uint32(0)
    return slot


@kernel()
def _fetch_cluster(buckets: np.ndarray, mask: Int, keys: np.ndarray, hashed: Int) -> None:
    """Prefetches the keys of the entries from the home of a hash on, which `_remove` may read."""
    bucket = home_of(hashed, buckets)
    while buckets[bucket] != 0:
        prefetch(keys, (np.uint64(buckets[bucket]) & mask) - np.uint64(1))
        bucket = after(bucket, np.uint64(buckets.size))


@kernel(types.void(BUCKETS_OUT, *OLD, KEYS_OUT, KEYS, KEYS_OUT))
def remove(
    buckets: np.ndarray,
    old: np.ndarray,
    first: Int,
    moved: Int,
    keys: np.ndarray,
    unwanted: np.ndarray,
    slots: np.ndarray,
) -> None:
    """Removes keys: slots[i] = the slot that unwanted[i] had, or -1 if it had none; keys[slot] = 0."""
    mask, old_mask = mask_of(buckets), mask_of(old)
    for start in range(0, unwanted.size, BLOCK):
        block = unwanted[start : start + BLOCK]
        for key in block:
            hashed = mix(np.uint64(key))
            if is_in_old(hashed, old, first, moved):
                prefetch(old, home_of(hashed, old))
            else:
                prefetch(buckets, home_of(hashed, buckets))
        for key in block:
            hashed = mix(np.uint64(key))
            if is_in_old(hashed, old, first, moved):
                _fetch_cluster(old, old_mask, keys, hashed)
            else:
                _fetch_cluster(buckets, mask, keys, hashed)
        for i in range(block.size):
            hashed = mix(np.uint64(block[i]))
            if block[i] == 0:
                slots[start + i] = -1
            elif is_in_old(hashed, old, first, moved):
                slots[start + i] = _remove(old, old_mask, keys, block[i], hashed)
            else:
                slots[start + i] = _remove(buckets, mask, keys, block[i], hashed)
