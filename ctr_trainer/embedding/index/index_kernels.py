"""Compiled loops of the hash index: from a 64-bit key to the slot its row lies in.

The index is open addressing with linear probing over 4-byte buckets. A bucket is 0 where it is empty, otherwise it
holds `slot + 1` in as many low bits as the number of buckets has and, in the bits left over, bits of the key's hash,
so that a probe rarely has to look at the key of another row. At most three quarters of the buckets are taken, and they
grow by half, so at least half are: 5.3 to 8 bytes of index a row. A key's bucket is the high half of its hash times the
number of buckets, divided by 2**32 (Lemire, Fast Random Integer Generation in an Interval, 2019), so that the
number need not be a power of two.

How it grows is in `index_growth`: until all entries have moved to the larger buckets, a key is looked for either there
or in the `old` ones.

The buckets and keys of a block of keys are prefetched before they are looked at. Measured on 2.5 and 10 million rows,
distinct keys at random, one core of a busy machine: 32 ns a key in place of 57, unknown keys 50 in place of 105.
"""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.cpu_prefetch import prefetch
from ctr_trainer.embedding.index.key_hash import KEYS, mix

SLOTS = types.Array(types.int64, 1, "C", readonly=True)
BUCKETS = types.Array(types.uint32, 1, "C", readonly=True)
BUCKETS_OUT = types.Array(types.uint32, 1, "C")
KEYS_OUT = types.Array(types.int64, 1, "C")
# Keys whose buckets are asked for before the first of them is looked at.
_BLOCK = 64
# So many buckets a core's cache holds: nothing to prefetch.
CACHED_BUCKETS = 1 << 17


@numba.njit(nogil=True, cache=True)
def _bits(buckets):
    bits = 0
    while (1 << bits) < buckets.size:
        bits += 1
    return np.uint64(bits)


@numba.njit(nogil=True, cache=True)
def home_of(hashed, buckets):
    """-> the bucket where the search for a hash begins."""
    return ((hashed >> np.uint64(32)) * np.uint64(buckets.size)) >> np.uint64(32)


@numba.njit(nogil=True, cache=True)
def after(bucket, size):
    """-> the bucket behind this one, the first behind the last."""
    bucket += np.uint64(1)
    return np.uint64(0) if bucket == size else bucket


@numba.njit(nogil=True, cache=True)
def distance(start, stop, size):
    """-> how many buckets a probe goes on from `start` to `stop`."""
    start, stop = np.int64(start), np.int64(stop)
    return stop - start if stop >= start else stop + np.int64(size) - start


@numba.njit(nogil=True, cache=True)
def _stays(hashed, old, first, moved):
    """-> whether the key of a hash is still among the `old` buckets, of which `moved` from `first` on have moved."""
    return old.size > 0 and distance(first, home_of(hashed, old), old.size) >= moved


@numba.njit(nogil=True, cache=True)
def mask_of(buckets):
    return (np.uint64(1) << _bits(buckets)) - np.uint64(1)


@numba.njit(nogil=True, cache=True)
def _tag(hashed, mask):
    return hashed & ~mask & np.uint64(0xFFFFFFFF)


@numba.njit(nogil=True, cache=True)
def entry_of(hashed, mask, slot):
    return np.uint32(_tag(hashed, mask) | np.uint64(slot + 1))


@numba.njit(nogil=True, cache=True)
def _candidate(buckets, mask, hashed, bucket):
    """-> the first bucket from `bucket` on that is empty or whose tag is that of the hash."""
    tag = _tag(hashed, mask)
    while True:
        entry = np.uint64(buckets[bucket])
        if entry == np.uint64(0) or entry & ~mask == tag:
            return bucket
        bucket = after(bucket, np.uint64(buckets.size))


@numba.njit(nogil=True, cache=True)
def _probe(buckets, mask, keys, key, hashed, bucket):
    """Searches from `bucket` on. -> (slot or -1, the bucket where the search ended)"""
    while True:
        bucket = _candidate(buckets, mask, hashed, bucket)
        if buckets[bucket] == 0:
            return np.int64(-1), bucket
        slot = (np.uint64(buckets[bucket]) & mask) - np.uint64(1)
        if keys[slot] == key:
            return np.int64(slot), bucket
        bucket = after(bucket, np.uint64(buckets.size))


# Inlined: as a call it cost `find_or_add` a tenth.
@numba.njit(nogil=True, cache=True, inline="always")
def _look_ahead(buckets, old, first, moved, keys, wanted, hashes, places):
    """Fills `hashes` and `places`, the first candidates' buckets, of a block; its buckets and keys are on their way."""
    mask, old_mask = mask_of(buckets), mask_of(old)
    for i in range(wanted.size):
        hashed = hashes[i] = mix(np.uint64(wanted[i]))
        if _stays(hashed, old, first, moved):
            prefetch(old, home_of(hashed, old))
        else:
            prefetch(buckets, home_of(hashed, buckets))
    for i in range(wanted.size):
        hashed = hashes[i]
        if _stays(hashed, old, first, moved):
            places[i] = _candidate(old, old_mask, hashed, home_of(hashed, old))
            prefetch(keys, (np.uint64(old[places[i]]) & old_mask) - np.uint64(1))
        else:
            places[i] = _candidate(buckets, mask, hashed, home_of(hashed, buckets))
            prefetch(keys, (np.uint64(buckets[places[i]]) & mask) - np.uint64(1))


SIZE = types.int64
_FIND = types.int64(BUCKETS, BUCKETS, SIZE, SIZE, KEYS, KEYS, KEYS_OUT)


@numba.njit(_FIND, nogil=True, cache=True)
def find(buckets, old, first, moved, keys, wanted, slots):
    """slots[i] = the slot of wanted[i], -1 where it has none. -> how many keys are unknown

    Args:
      buckets: where the entries are, or move to.
      old: where they move from; empty where none move.
      first, moved: how far: so many of the old buckets, from the first on around the ring.
      keys: in slot order.
    """
    mask, old_mask, unknown = mask_of(buckets), mask_of(old), 0
    hashes, places = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for start in range(0, wanted.size, _BLOCK):
        count = min(_BLOCK, wanted.size - start)
        _look_ahead(buckets, old, first, moved, keys, wanted[start : start + count], hashes, places)
        for i in range(count):
            key, hashed, slot = wanted[start + i], hashes[i], np.int64(-1)
            if key != 0:
                if _stays(hashed, old, first, moved):
                    slot = _probe(old, old_mask, keys, key, hashed, places[i])[0]
                else:
                    slot = _probe(buckets, mask, keys, key, hashed, places[i])[0]
                unknown += slot < 0
            slots[start + i] = slot
    return unknown


@numba.njit(nogil=True, cache=True)
def _is_before(first, bucket, hashed, old):
    """-> whether the search for a hash has gone around to a bucket before its home: where entries have moved from."""
    return distance(first, bucket, old.size) < distance(first, home_of(hashed, old), old.size)


@numba.njit(nogil=True, cache=True)
def _new_slot(free, free_count, count, limit):
    """-> (the slot that the next new key gets, or -1, free_count, count)"""
    if free_count > 0:
        return free[free_count - 1], free_count - 1, count
    if count == limit:
        return np.int64(-1), free_count, count
    return count, free_count, count + 1


@numba.njit(nogil=True, cache=True)
def _find_or_add_cold(buckets, old, first, moved, keys, free, free_count, count, limit, wanted, slots, start):
    """As `find_or_add`, by blocks as `find`: so one pass finds the keys that are there as fast and adds the others."""
    mask, old_mask = mask_of(buckets), mask_of(old)
    hashes, places = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for begin in range(start, wanted.size, _BLOCK):
        size = min(_BLOCK, wanted.size - begin)
        _look_ahead(buckets, old, first, moved, keys, wanted[begin : begin + size], hashes, places)
        for i in range(size):
            key, hashed = wanted[begin + i], hashes[i]
            if key == 0:
                slots[begin + i] = -1
                continue
            # The candidate still is the first, or what a key before this one in the block was entered as.
            stays = _stays(hashed, old, first, moved)
            if stays:
                slot, bucket = _probe(old, old_mask, keys, key, hashed, places[i])
            else:
                slot, bucket = _probe(buckets, mask, keys, key, hashed, places[i])
            if slot < 0:
                if stays and _is_before(first, bucket, hashed, old):
                    return begin + i, free_count, count
                slot, free_count, count = _new_slot(free, free_count, count, limit)
                if slot < 0:
                    return begin + i, free_count, count
                keys[slot] = key
                if stays:
                    old[bucket] = entry_of(hashed, old_mask, slot)
                else:
                    buckets[bucket] = entry_of(hashed, mask, slot)
            slots[begin + i] = slot
    return wanted.size, free_count, count


_ADDED = types.UniTuple(types.int64, 3)
OLD = (BUCKETS_OUT, SIZE, SIZE)
_FREE = (KEYS, SIZE, SIZE, SIZE)


@numba.njit(_ADDED(BUCKETS_OUT, *OLD, KEYS_OUT, *_FREE, KEYS, KEYS_OUT, SIZE), nogil=True, cache=True)
def find_or_add(buckets, old, first, moved, keys, free, free_count, count, limit, wanted, slots, start):
    """Finds wanted[start:], and gives each unknown key a slot: first free[free_count - 1], free[free_count - 2], ...,
    then count, count + 1, ... up to `limit`. The other arguments are those of `find`.

    Returns:
      (done, free_count, count): wanted[start:done] have their slots; done < len(wanted) where the limit was reached, or
      all old buckets have to move first: an entry there would lie beyond the first one, where the moved ones were.
    """
    if buckets.size > CACHED_BUCKETS:
        return _find_or_add_cold(buckets, old, first, moved, keys, free, free_count, count, limit, wanted, slots, start)
    mask, old_mask = mask_of(buckets), mask_of(old)
    for i in range(start, wanted.size):
        key = wanted[i]
        if key == 0:
            slots[i] = -1
            continue
        hashed = mix(np.uint64(key))
        stays = _stays(hashed, old, first, moved)
        if stays:
            slot, bucket = _probe(old, old_mask, keys, key, hashed, home_of(hashed, old))
        else:
            slot, bucket = _probe(buckets, mask, keys, key, hashed, home_of(hashed, buckets))
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


@numba.njit(nogil=True, cache=True)
def _remove(buckets, mask, keys, key, hashed):
    """Takes a key out. -> the slot that it had, or -1

    The entries behind the gap move up into it where a probe for them would otherwise end there, so no marker is left.
    """
    size = np.uint64(buckets.size)
    slot, gap = _probe(buckets, mask, keys, key, hashed, home_of(hashed, buckets))
    if slot < 0:
        return slot
    keys[slot] = 0
    bucket = after(gap, size)
    while buckets[bucket] != 0:
        other = (np.uint64(buckets[bucket]) & mask) - np.uint64(1)
        home = home_of(mix(np.uint64(keys[other])), buckets)
        if distance(home, bucket, size) >= distance(gap, bucket, size):
            buckets[gap] = buckets[bucket]
            gap = bucket
        bucket = after(bucket, size)
    buckets[gap] = np.uint32(0)
    return slot


@numba.njit(types.void(BUCKETS_OUT, *OLD, KEYS_OUT, KEYS, KEYS_OUT), nogil=True, cache=True)
def remove(buckets, old, first, moved, keys, unwanted, slots):
    """Takes keys out: slots[i] = the slot that unwanted[i] had, -1 where it had none; keys[slot] = 0."""
    mask, old_mask = mask_of(buckets), mask_of(old)
    for i in range(unwanted.size):
        key = unwanted[i]
        slots[i] = -1
        if key != 0:
            hashed = mix(np.uint64(key))
            if _stays(hashed, old, first, moved):
                slots[i] = _remove(old, old_mask, keys, key, hashed)
            else:
                slots[i] = _remove(buckets, mask, keys, key, hashed)
