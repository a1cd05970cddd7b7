"""Compiled loops of the hash index: from a 64-bit key to the slot its row lies in.

The index is open addressing with linear probing over 4-byte buckets. A bucket is 0 where it is empty, otherwise it
holds `slot + 1` in as many low bits as the number of buckets has and, in the bits left over, bits of the key's hash,
so that a probe rarely has to look at the key of another row. At most three quarters of the buckets are taken, and they
grow by half, so at least half are: 5.3 to 8 bytes of index a row. A key's bucket is the high half of its hash times the
number of buckets, divided by 2**32 (Lemire, Fast Random Integer Generation in an Interval, 2019), so that the
number need not be a power of two.

Plain loops, on purpose: a core overlaps the cache misses of several probes by itself. Measured on a table of 2 million
rows, 8,600 keys a batch, one core: 23 ns a key, against 26 ns where the buckets of a block are read ahead of its keys
and 19 ns with prefetch instructions, which Numba does not offer.
"""

import numba
import numpy as np
from numba import types

KEYS = types.Array(types.int64, 1, "C", readonly=True)
SLOTS = types.Array(types.int64, 1, "C", readonly=True)
_BUCKETS = types.Array(types.uint32, 1, "C", readonly=True)
_BUCKETS_OUT = types.Array(types.uint32, 1, "C")
_KEYS_OUT = types.Array(types.int64, 1, "C")
_INDEX_OUT = types.Array(types.int32, 1, "C")


@numba.njit(types.uint64(types.uint64), nogil=True, cache=True)
def mix(value):
    """The finalizer of SplitMix64, a bijection of 64-bit integers (Steele et al., OOPSLA 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def _bits(buckets):
    bits = 0
    while (1 << bits) < buckets.size:
        bits += 1
    return np.uint64(bits)


@numba.njit(nogil=True, cache=True)
def _home(hashed, buckets):
    """-> the bucket where the search for a hash begins."""
    return ((hashed >> np.uint64(32)) * np.uint64(buckets.size)) >> np.uint64(32)


@numba.njit(nogil=True, cache=True)
def _after(bucket, size):
    """-> the bucket behind this one, the first behind the last."""
    bucket += np.uint64(1)
    return np.uint64(0) if bucket == size else bucket


@numba.njit(nogil=True, cache=True)
def _distance(start, stop, size):
    """-> how many buckets a probe goes on from `start` to `stop`."""
    return stop - start if stop >= start else stop + size - start


@numba.njit(nogil=True, cache=True)
def _probe(buckets, keys, bits, key, hashed):
    """-> (slot or -1, the bucket where the search ended)"""
    mask = (np.uint64(1) << bits) - np.uint64(1)
    tag = hashed & ~mask & np.uint64(0xFFFFFFFF)
    bucket = _home(hashed, buckets)
    while True:
        entry = np.uint64(buckets[bucket])
        if entry == np.uint64(0):
            return np.int64(-1), bucket
        if entry & ~mask == tag:
            slot = (entry & mask) - np.uint64(1)
            if keys[slot] == key:
                return np.int64(slot), bucket
        bucket = _after(bucket, np.uint64(buckets.size))


@numba.njit(types.int64(_BUCKETS, KEYS, KEYS, _KEYS_OUT), nogil=True, cache=True)
def find(buckets, keys, wanted, slots):
    """slots[i] = the slot of wanted[i], -1 where it has none. `keys` is in slot order. -> how many keys are unknown"""
    bits = _bits(buckets)
    unknown = 0
    for i in range(wanted.size):
        key = wanted[i]
        slot = np.int64(-1)
        if key != 0:
            slot = _probe(buckets, keys, bits, key, mix(np.uint64(key)))[0]
            unknown += slot < 0
        slots[i] = slot
    return unknown


_SLOT = types.int64
_FIND_OR_ADD = types.UniTuple(types.int64, 3)


@numba.njit(
    [
        _FIND_OR_ADD(_BUCKETS_OUT, _KEYS_OUT, KEYS, _SLOT, _SLOT, _SLOT, KEYS, _KEYS_OUT, _SLOT),
        _FIND_OR_ADD(_BUCKETS_OUT, _KEYS_OUT, KEYS, _SLOT, _SLOT, _SLOT, KEYS, _INDEX_OUT, _SLOT),
    ],
    nogil=True,
    cache=True,
)
def find_or_add(buckets, keys, free, free_count, count, limit, wanted, slots, start):
    """Finds wanted[start:], and gives each unknown key a slot: first free[free_count - 1], free[free_count - 2], ...,
    then count, count + 1, ... up to `limit`.

    Returns:
      (done, free_count, count): wanted[start:done] have their slots; done < len(wanted) where the index has to grow.
    """
    bits = _bits(buckets)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    for i in range(start, wanted.size):
        key = wanted[i]
        if key == 0:
            slots[i] = -1
            continue
        hashed = mix(np.uint64(key))
        slot, bucket = _probe(buckets, keys, bits, key, hashed)
        if slot < 0:
            if free_count > 0:
                free_count -= 1
                slot = free[free_count]
            elif count == limit:
                return i, free_count, count
            else:
                slot = count
                count += 1
            keys[slot] = key
            buckets[bucket] = np.uint32((hashed & ~mask & np.uint64(0xFFFFFFFF)) | np.uint64(slot + 1))
        slots[i] = slot
    return wanted.size, free_count, count


@numba.njit(types.void(_BUCKETS_OUT, _KEYS_OUT, KEYS, _KEYS_OUT), nogil=True, cache=True)
def remove(buckets, keys, unwanted, slots):
    """Takes keys out: slots[i] = the slot that unwanted[i] had, -1 where it had none; keys[slot] = 0.

    The entries behind a gap move up into it where a probe for them would otherwise end there, so no marker is left.
    """
    bits, size = _bits(buckets), np.uint64(buckets.size)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    for i in range(unwanted.size):
        key = unwanted[i]
        slots[i] = -1
        if key == 0:
            continue
        slot, gap = _probe(buckets, keys, bits, key, mix(np.uint64(key)))
        slots[i] = slot
        if slot < 0:
            continue
        keys[slot] = 0
        bucket = _after(gap, size)
        while buckets[bucket] != 0:
            other = (np.uint64(buckets[bucket]) & mask) - np.uint64(1)
            home = _home(mix(np.uint64(keys[other])), buckets)
            if _distance(home, bucket, size) >= _distance(gap, bucket, size):
                buckets[gap] = buckets[bucket]
                gap = bucket
            bucket = _after(bucket, size)
        buckets[gap] = np.uint32(0)


@numba.njit(types.void(_BUCKETS_OUT, KEYS), nogil=True, cache=True)
def rebuild(buckets, keys):
    """Enters `keys`, which differ from each other, into empty buckets; a free slot has the key 0."""
    bits = _bits(buckets)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    for slot in range(keys.size):
        if keys[slot] == 0:
            continue
        hashed = mix(np.uint64(keys[slot]))
        bucket = _home(hashed, buckets)
        while buckets[bucket] != 0:
            bucket = _after(bucket, np.uint64(buckets.size))
        buckets[bucket] = np.uint32((hashed & ~mask & np.uint64(0xFFFFFFFF)) | np.uint64(slot + 1))


@numba.njit(types.void(KEYS, types.int64, _INDEX_OUT), nogil=True, cache=True)
def shard_of(keys, shards, out):
    """out[i] = the shard that owns keys[i]."""
    for i in range(keys.size):
        out[i] = np.int32(mix(np.uint64(keys[i])) % np.uint64(shards))
