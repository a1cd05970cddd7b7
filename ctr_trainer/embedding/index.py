"""The hash index: a slot for each distinct key."""

import numpy as np

from ctr_trainer.embedding import index_kernels
from ctr_trainer.embedding.memory import PrivateMemory

_FIRST_BUCKETS = 1024
_MOST_BUCKETS = 1 << 32
_COUNT, _FREE_COUNT, _BUCKETS, _ACTIVE = range(4)


class Index:
    """Gives the distinct keys it meets the slots 0, 1, 2, ...; the key 0 ("no value") has slot -1.

    A removed key's slot is given to one that comes later. 8 bytes a key, 5.3 to 8 bytes of buckets a row and 8 bytes a
    free slot. Not safe to use from several threads at a time.

    Growth enters all keys into a second array of buckets, and the memory of the first is given back.
    """

    def __init__(self, memory=None):
        """`memory`: `PrivateMemory`, or what has its methods: all that changes in an index lies there."""
        self._memory = memory or PrivateMemory()
        self._keys = self._memory.array("keys", np.int64)
        self._free = self._memory.array("free", np.int64)
        self._regions = [self._memory.array(f"buckets{region}", np.uint32) for region in range(2)]
        self._counts = self._memory.counts("index", 4)
        if not self._counts[_BUCKETS]:
            self._regions[0].reserve(_FIRST_BUCKETS)
            self._counts[_BUCKETS] = _FIRST_BUCKETS

    @property
    def _buckets(self):
        return self._regions[self._counts[_ACTIVE]].array[: self._counts[_BUCKETS]]

    @property
    def _count(self):
        return int(self._counts[_COUNT])

    @property
    def _free_count(self):
        return int(self._counts[_FREE_COUNT])

    def __len__(self):
        return self._count - self._free_count

    @property
    def slots(self):
        """How many slots there are: the keys, and the slots of removed keys that no other has got yet."""
        return self._count

    @property
    def keys(self):
        """int64[slots], a view in slot order, 0 for a free slot; valid until the index changes."""
        return self._keys.array[: self._count]

    @property
    def nbytes(self):
        return self._buckets.nbytes + (self._count + self._free_count) * 8

    def find(self, keys):
        """int64[U] -> int64[U] slots, -1 where a key is unknown."""
        slots = np.empty(len(keys), np.int64)
        index_kernels.find(self._buckets, self._keys.array, keys, slots)
        return slots

    def find_or_add(self, keys):
        """int64[U] -> int64[U] slots, a free or a new one for each unknown key, in the order of `keys`."""
        slots = np.empty(len(keys), np.int64)
        # Most often every key is there, and looking alone is a quarter faster than looking in order to add.
        if index_kernels.find(self._buckets, self._keys.array, keys, slots):
            self.add_all(keys, slots)
        return slots

    def add_all(self, keys, slots):
        """`find_or_add` for keys that are mostly new: fills the int64 or int32 array `slots`."""
        done = 0
        while True:
            buckets = self._buckets
            limit = len(buckets) * 3 // 4
            self._keys.reserve(min(limit, self._count + len(keys) - done))
            done, free_count, count = index_kernels.find_or_add(
                *(buckets, self._keys.array, self._free.array, self._free_count),
                *(self._count, limit, keys, slots, done),
            )
            self._counts[_FREE_COUNT], self._counts[_COUNT] = free_count, count
            if done == len(keys):
                return
            self._grow()

    def free_slots(self, count):
        """-> int64[n], the free slots that the next `count` new keys get, as far as there are any."""
        free_count = self._free_count
        return self._free.array[max(free_count - count, 0) : free_count].copy()

    def remove(self, keys):
        """Forgets int64[U]. -> int64[U], the slots they had, now free; -1 where a key was unknown."""
        slots = np.empty(len(keys), np.int64)
        index_kernels.remove(self._buckets, self._keys.array, keys, slots)
        freed = slots[slots >= 0]
        free_count = self._free_count
        self._free.reserve(free_count + len(freed))
        self._free.array[free_count : free_count + len(freed)] = freed
        self._counts[_FREE_COUNT] += len(freed)
        return slots

    def clear(self):
        """Forgets every key; the room stays."""
        self._buckets.fill(0)
        self._counts[_COUNT] = self._counts[_FREE_COUNT] = 0

    def _grow(self):
        before, active = int(self._counts[_BUCKETS]), int(self._counts[_ACTIVE])
        if before == _MOST_BUCKETS:
            raise OverflowError(f"an index holds at most {_MOST_BUCKETS * 3 // 4} keys")
        buckets = min(before * 3 // 2, _MOST_BUCKETS)
        self._regions[1 - active].reserve(buckets)
        index_kernels.rebuild(self._regions[1 - active].array[:buckets], self.keys)
        self._counts[_BUCKETS], self._counts[_ACTIVE] = buckets, 1 - active
        self._regions[active].release(self._memory.free)
