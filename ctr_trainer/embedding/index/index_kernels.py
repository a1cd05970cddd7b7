"""Compiled loops of the hash index: from a 64-bit key to the slot its row lies in.

The index uses open addressing with linear probing over 4-byte buckets. An empty bucket is 0. A taken bucket holds
`slot + 1` in its low bits, as many bits as the number of buckets has; its other bits hold bits of the key's hash, so
that a probe rarely has to look at the key of another row. At most three quarters of the buckets are taken. They grow by
half, so at least half of them are taken: 5.3 to 8 bytes of index per row. The bucket of a key is the high half of its
hash times the number of buckets, divided by 2**32 (Lemire, Fast Random Integer Generation in an Interval, 2019), so the
number of buckets need not be a power of two.

`index_maintenance` says how the index grows. Until all entries have moved to the larger buckets, a key is looked for
either in these or in the `old` buckets.

The buckets and keys of a block of keys are prefetched before they are read. Measured on 2.5 and 10 million rows with
random distinct keys, on one core of a busy machine: 32 ns per key in place of 57, and 50 per unknown key in place of
105.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_kernels import KEYS, Int, kernel, mix, prefetch

SLOTS = types.Array(types.int64, 1, "C", readonly=True)
BUCKETS = types.Array(types.uint32, 1, "C", readonly=True)
BUCKETS_OUT = types.Array(types.uint32, 1, "C")
KEYS_OUT = types.Array(types.int64, 1, "C")
# Keys whose buckets are prefetched together, before the first of them is read.
_BLOCK = 64
# Up to this many buckets fit into a core's cache, and nothing is prefetched.
CACHED_BUCKETS = 1 << 17


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
    """Returns the bucket behind this one; behind the last bucket, the first."""
    bucket += np.uint64(1)
    return np.uint64(0) if bucket == size else bucket


@kernel()
def distance(start: Int, stop: Int, size: Int) -> Int:
    """Returns by how many buckets a probe advances from `start` to `stop`."""
    start, stop = np.int64(start), np.int64(stop)
    return stop - start if stop >= start else stop + np.int64(size) - start


@kernel()
def is_in_old(hashed: Int, old: np.ndarray, first: Int, moved: Int) -> bool:
    """Returns whether the key of a hash is still in the `old` buckets; `moved` of them, from `first` on, have moved."""
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


# Inlined: as a call it cost `find_or_add` a tenth.
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
    """Fills `hashes`, and `places`, the first candidates' buckets, for a block of keys; prefetches their memory."""
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
    """Sets slots[i] = the slot of wanted[i], or -1 for an unknown key; returns how many are unknown.

    `buckets` hold the entries, or the entries move to them from the `old` buckets, which are empty if none move:
    `moved` old buckets have moved, from the bucket `first` on around the ring. `keys` are those of the index, in slot
    order.
    """
    mask, old_mask, unknown = mask_of(buckets), mask_of(old), 0
    hashes, places = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for start in range(0, wanted.size, _BLOCK):
        count = min(_BLOCK, wanted.size - start)
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
    """Returns whether the search for a hash went around the ring to a bucket before its home, whose entry has moved."""
    return distance(first, bucket, old.size) < distance(first, home_of(hashed, old), old.size)


@kernel()
def _new_slot(free: np.ndarray, free_count: Int, count: Int, limit: Int) -> tuple[Int, Int, Int]:
    """Returns (the slot of the next new key, or -1 at the limit; free_count and count after that)"""
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
    """Finds wanted[start:], and gives each unknown key a slot: first free[free_count - 1], free[free_count - 2], ...,
    then count, count + 1, ... up to `limit`. `find` explains the other arguments.

    Returns:
      (done, free_count, count): wanted[start:done] have their slots. done < len(wanted) if the limit is reached, or if
      all old buckets have to move before the next key is entered: its entry would lie beyond the first bucket that
      moved, and would not be found.
    """
    mask, old_mask = mask_of(buckets), mask_of(old)
    hashes, places = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    is_cold = buckets.size > CACHED_BUCKETS  # Then known keys are found by blocks, as fast as by `find`.
    for i in range(start, wanted.size):
        key, at = wanted[i], (i - start) % _BLOCK
        if is_cold and at == 0:
            _look_ahead(buckets, old, first, moved, keys, wanted[i : i + _BLOCK], hashes, places)
        if key == 0:
            slots[i] = -1
            continue
        hashed = hashes[at] if is_cold else mix(np.uint64(key))
        stays = is_in_old(hashed, old, first, moved)
        # places[at] is still the first candidate; or a key before this one in the block has been entered there.
        if stays:
            slot, bucket = probe(old, old_mask, keys, key, hashed, places[at] if is_cold else home_of(hashed, old))
        else:
            place = places[at] if is_cold else home_of(hashed, buckets)
            slot, bucket = probe(buckets, mask, keys, key, hashed, place)
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
