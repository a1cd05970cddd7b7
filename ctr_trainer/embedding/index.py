"""The hash index: a slot for each distinct key."""

import numpy as np

from ctr_trainer.embedding import index_kernels
from ctr_trainer.embedding.memory import GrowableArray, release, zeros

_FIRST_BUCKETS = 1024
_MOST_BUCKETS = 1 << 32
# Old buckets whose entries move for each key that comes, so all have before a 48th more keys are there; and for how
# many keys they do at a time.
_MOVED_A_KEY = 48
_KEYS_A_MOVE = 1024
_NO_BUCKETS = np.empty(0, np.uint32)


class Index:
    """Gives the distinct keys it meets the slots 0, 1, 2, ...; the key 0 ("no value") has slot -1.

    A removed key's slot is given to one that comes later. 8 bytes a key, 5.3 to 8 bytes of buckets a row and 8 bytes a
    free slot. It grows without a pause: for each key that comes, a few entries move to larger buckets, and the memory
    that they leave is given back. Not safe to use from several threads at a time.
    """

    def __init__(self):
        self._keys = GrowableArray(np.int64)
        self._buckets = zeros(_FIRST_BUCKETS, np.uint32)
        self._old, self._first, self._moved = _NO_BUCKETS, 0, 0
        self._count = 0
        self._free = GrowableArray(np.int64)
        self._free_count = 0

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
        buckets = len(self._buckets)
        if len(self._old):  # Both are in the order of the hashes: what has moved fills the new ones from the first on.
            buckets = len(self._old) - self._moved + buckets * self._moved // len(self._old)
        return buckets * 4 + (self._count + self._free_count) * 8

    def find(self, keys):
        """int64[U] -> int64[U] slots, -1 where a key is unknown."""
        slots = np.empty(len(keys), np.int64)
        self._find(keys, slots)
        return slots

    def find_or_add(self, keys):
        """int64[U] -> int64[U] slots, a free or a new one for each unknown key, in the order of `keys`."""
        slots = np.empty(len(keys), np.int64)
        # Most often every key is there, and looking alone is faster than looking in order to add.
        if self._find(keys, slots):
            unknown = np.flatnonzero((slots < 0) & (keys != 0))
            added = np.empty(len(unknown), np.int64)
            self.add_all(keys[unknown], added)
            slots[unknown] = added
        return slots

    def add_all(self, keys, slots):
        """`find_or_add` for keys that are mostly new: fills the int64 or int32 array `slots`."""
        done = 0
        while True:
            if len(self._old):
                step = min(_KEYS_A_MOVE, max(len(self._old) // _MOVED_A_KEY, 1))
                limit = self._count + step
            else:
                limit = len(self._buckets) * 3 // 4
            self._keys.reserve(min(limit, self._count + len(keys) - done))
            before = self._count
            done, self._free_count, self._count = index_kernels.find_or_add(
                *(self._buckets, self._old, self._first, self._moved, self._keys.array, self._free.array),
                *(self._free_count, self._count, limit, keys, slots, done),
            )
            if len(self._old):
                at_once = done < len(keys) and self._count < limit
                self._move(len(self._old) if at_once else _MOVED_A_KEY * (self._count - before))
            elif done < len(keys):
                self._grow()
            if done == len(keys):
                return

    def free_slots(self, count):
        """-> int64[n], the free slots that the next `count` new keys get, as far as there are any."""
        return self._free.array[max(self._free_count - count, 0) : self._free_count].copy()

    def remove(self, keys):
        """Forgets int64[U]. -> int64[U], the slots they had, now free; -1 where a key was unknown."""
        slots = np.empty(len(keys), np.int64)
        index_kernels.remove(*(self._buckets, self._old, self._first, self._moved, self._keys.array), keys, slots)
        freed = slots[slots >= 0]
        self._free.reserve(self._free_count + len(freed))
        self._free.array[self._free_count : self._free_count + len(freed)] = freed
        self._free_count += len(freed)
        return slots

    def clear(self):
        """Forgets every key; the room stays."""
        self._buckets.fill(0)
        self._old = _NO_BUCKETS
        self._count = self._free_count = 0

    def _find(self, keys, slots):
        """Fills `slots`. -> how many of the keys are unknown."""
        return index_kernels.find(*(self._buckets, self._old, self._first, self._moved, self._keys.array), keys, slots)

    def _grow(self):
        if len(self._buckets) == _MOST_BUCKETS:
            raise OverflowError(f"an index holds at most {_MOST_BUCKETS * 3 // 4} keys")
        self._old, self._first, self._moved = self._buckets, index_kernels.first_empty(self._buckets), 0
        self._buckets = zeros(min(len(self._old) * 3 // 2, _MOST_BUCKETS), np.uint32)

    def _move(self, most):
        self._moved = index_kernels.move(*(self._buckets, self._old, self._first, self._moved, self._keys.array), most)
        if self._moved == len(self._old):
            self._old = _NO_BUCKETS
        else:
            release(self._old, self._first, min(self._first + self._moved, len(self._old)))
