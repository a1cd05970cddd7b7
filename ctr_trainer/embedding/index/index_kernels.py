"""Compiled loops of the hash index, which maps a 64-bit key to the slot of its row.

The index uses open addressing with linear probing over 4-byte buckets. An empty bucket is 0. The low bits of a taken
bucket, enough to number all buckets, hold `slot + 1`. Its other bits hold bits of the key's hash, so that a probe
rarely has to read the key of another row. At most three quarters of the buckets are taken. The number of buckets grows
by half, so at least half of them are taken: 5.3 to 8 bytes of index per row. The home bucket of a key is the high half
of its hash times the number of buckets, divided by 2**32 (Lemire, Fast Random Integer Generation in an Interval, 2019),
so the number of buckets need not be a power of two.

`index_maintenance` describes how the index grows. Until all entries have moved to the new buckets, the search for a key
reads either the new buckets or the `old` buckets.

The loops prefetch the buckets and keys of a block of keys before they read them. Measured with 2.5 and 10 million rows
and random distinct keys, on one core of a busy machine: 32 ns per key instead of 57 ns, and 50 ns per unknown key
instead of 105 ns.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_kernels import KEYS, Int, kernel, mix, prefetch

SLOTS = types.Array(types.int64, 1, "C", readonly=True)
BUCKETS = types.Array(types.uint32, 1, "C", readonly=True)
BUCKETS_OUT = types.Array(types.uint32, 1, "C")
KEYS_OUT = types.Array(types.int64, 1, "C")
# Keys whose buckets are prefetched together, before the first of them is read.
BLOCK = 64


@kernel()
def _bits(buckets: np.ndarray) -> Int:
    bits = 0
    while (1 << bits) < buckets.size:
        bits += 1
    return np.uint64(bits)


@kernel()
def home_of(hashed: Int, buckets: np.ndarray) -> Int:
    """Returns the bucket where the search for a hash begins."""
    return ((hashed >> np.uint64(32)) * np.uint64(buckets.size)) >> np.uint64(32)


@kernel()
def after(bucket: Int, size: Int) -> Int:
    """Returns the next bucket; the first bucket follows the last."""
    bucket += np.uint64(1)
    return np.uint64(0) if bucket == size else bucket


@kernel()
def distance(start: Int, stop: Int, size: Int) -> Int:
    """Returns the number of buckets that a probe advances from `start` to `stop`."""
    start, stop = np.int64(start), np.int64(stop)
    return stop - start if stop >= start else stop + np.int64(size) - start


@kernel()
def is_in_old(hashed: Int, old: np.ndarray, first: Int, moved: Int) -> bool:
    """Returns whether a hash is searched in the `old` buckets, of which `moved`, from `first` on, have moved."""
    return old.size > 0 and distance(first, home_of(hashed, old), old.size) >= moved


@kernel()
def mask_of(buckets: np.ndarray) -> Int:
    return (np.uint64(1) << _bits(buckets)) - np.uint64(1)


@kernel()
def _tag(hashed: Int, mask: Int) -> Int:
    return hashed & ~mask & np.uint64(0xFFFFFFFF)


@kernel()
def entry_of(hashed: Int, mask: Int, slot: Int) -> Int:
    return np.uint32(_tag(hashed, mask) | np.uint64(slot + 1))


@kernel()
def _candidate(buckets: np.ndarray, mask: Int, hashed: Int, bucket: Int) -> Int:
    """Returns the first bucket from `bucket` on that is empty or whose tag is the hash's."""
    tag = _tag(hashed, mask)
    while True:
        entry = np.uint64(buckets[bucket])
        if entry == np.uint64(0) or entry & ~mask == tag:
            return bucket
        bucket = after(bucket, np.uint64(buckets.size))


@kernel()
def probe(buckets: np.ndarray, mask: Int, keys: np.ndarray, key: Int, hashed: Int, bucket: Int) -> tuple[Int, Int]:
    """Searches for a key from `bucket` on and returns (its slot or -1, the bucket where the search ended)."""
    while True:
        bucket = _candidate(buckets, mask, hashed, bucket)
        if buckets[bucket] == 0:
            return np.int64(-1), bucket
        slot = (np.uint64(buckets[bucket]) & mask) - np.uint64(1)
        if keys[slot] == key:
            return np.int64(slot), bucket
        bucket = after(bucket, np.uint64(buckets.size))


# Inlined, because a call made `find_or_add` slower by a tenth.
@kernel(inline="always")
def _look_ahead(
    buckets: np.ndarray,
    old: np.ndarray,
    first: Int,
    moved: Int,
    keys: np.ndarray,
    wanted: np.ndarray,
    hashes: np.ndarray,
    places: np.ndarray,
) -> None:
    """Sets `hashes` and `places`, the first candidate bucket of each key of a block, and prefetches their memory."""
    mask, old_mask = mask_of(buckets), mask_of(old)
    for i in range(wanted.size):
        hashed = hashes[i] = mix(np.uint64(wanted[i]))
        if is_in_old(hashed, old, first, moved):
            prefetch(old, home_of(hashed, old))
        else:
            prefetch(buckets, home_of(hashed, buckets))
    for i in range(wanted.size):
        hashed = hashes[i]
        if is_in_old(hashed, old, first, moved):
            places[i] = _candidate(old, old_mask, hashed, home_of(hashed, old))
            prefetch(keys, (np.uint64(old[places[i]]) & old_mask) - np.uint64(1))
        else:
            places[i] = _candidate(buckets, mask, hashed, home_of(hashed, buckets))
            prefetch(keys, (np.uint64(buckets[places[i]]) & mask) - np.uint64(1))


SIZE = types.int64
_FIND = types.int64(BUCKETS, BUCKETS, SIZE, SIZE, KEYS, KEYS, KEYS_OUT)


@kernel(_FIND)
def find(
    buckets: np.ndarray,
    old: np.ndarray,
    first: Int,
    moved: Int,
    keys: np.ndarray,
    wanted: np.ndarray,
    slots: np.ndarray,
) -> int:
    """Sets slots[i] = the slot of wanted[i], or -1 for an unknown key; returns the number of unknown keys other than 0.

    `buckets` holds the entries. While the index grows, entries move to `buckets` from `old`, which is otherwise empty:
    `moved` of the old buckets have moved, from the bucket `first` on around the ring. `keys` are the keys of the index
    in slot order.
    """
    mask, old_mask, unknown = mask_of(buckets), mask_of(old), 0
    hashes, places = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, wanted.size, BLOCK):
        count = min(BLOCK, wanted.size - start)
        _look_ahead(buckets, old, first, moved, keys, wanted[start : start + count], hashes, places)
        for i in range(count):
            key, hashed, slot = wanted[start + i], hashes[i], np.int64(-1)
            if key != 0:
                if is_in_old(hashed, old, first, moved):
                    slot = probe(old, old_mask, keys, key, hashed, places[i])[0]
                else:
                    slot = probe(buckets, mask, keys, key, hashed, places[i])[0]
                unknown += slot < 0
            slots[start + i] = slot
    return unknown


@kernel()
def _is_before(first: Int, bucket: Int, hashed: Int, old: np.ndarray) -> bool:
    """Returns whether the search for a hash passed the bucket `first` and ended at a bucket that has already moved."""
    return distance(first, bucket, old.size) < distance(first, home_of(hashed, old), old.size)


@kernel()
def _new_slot(free: np.ndarray, free_count: Int, count: Int, limit: Int) -> tuple[Int, Int, Int]:
    """Returns (the slot of the next new key, or -1 at the limit; the new free_count; the new count)."""
    if free_count > 0:
        return free[free_count - 1], free_count - 1, count
    if count == limit:
        return np.int64(-1), free_count, count
    return count, free_count, count + 1


_ADDED = types.UniTuple(types.int64, 3)
OLD = (BUCKETS_OUT, SIZE, SIZE)
_FREE = (KEYS, SIZE, SIZE, SIZE)


@kernel(_ADDED(BUCKETS_OUT, *OLD, KEYS_OUT, *_FREE, KEYS, KEYS_OUT, SIZE))
def find_or_add(
    buckets: np.ndarray,
    old: np.ndarray,
    first: Int,
    moved: Int,
    keys: np.ndarray,
    free: np.ndarray,
    free_count: Int,
    count: Int,
    limit: Int,
    wanted: np.ndarray,
    slots: np.ndarray,
    start: Int,
) -> tuple[int, int, int]:
    """Finds wanted[start:], and gives each unknown key a slot.

    The slots are first free[free_count - 1], free[free_count - 2], ..., then count, count + 1, ... up to `limit`.
    `find` explains the other arguments.

    Returns (done, free_count, count): wanted[start:done] have their slots. done < len(wanted) if the limit is reached,
    or if all old buckets have to move before the next key is added, because its entry would lie beyond the first bucket
    that moved and would not be found.
    """
    mask, old_mask = mask_of(buckets), mask_of(old)
    hashes, places = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for i in range(start, wanted.size):
        key, at = wanted[i], (i - start) % BLOCK
        if at == 0:
            _look_ahead(buckets, old, first, moved, keys, wanted[i : i + BLOCK], hashes, places)
        if key == 0:
            slots[i] = -1
            continue
        hashed = hashes[at]
        stays = is_in_old(hashed, old, first, moved)
        # places[at] is still the first candidate, unless an earlier key of the block was entered there.
        if stays:
            slot, bucket = probe(old, old_mask, keys, key, hashed, places[at])
        else:
            slot, bucket = probe(buckets, mask, keys, key, hashed, places[at])
        if slot < 0:
            if stays and _is_before(first, bucket, hashed, old):
                return i, free_count, count
            slot, free_count, count = _new_slot(free, free_count, count, limit)
            if slot < 0:
                return i, free_count, count
            keys[slot] = key
            if stays:
                old[bucket] = entry_of(hashed, old_mask, slot)
            else:
                buckets[bucket] = entry_of(hashed, mask, slot)
        slots[i] = slot
    return wanted.size, free_count, count
