"""The hash index, which assigns a slot to each distinct key."""

import numpy as np

from ctr_trainer.embedding.index import index_kernels, index_maintenance, key_kernels
from ctr_trainer.embedding.memory.growable_array import MOST_BUCKETS, TableMemory

_FIRST_BUCKETS = 1024
_HASHES = 1 << 32  # The number of values of a hash's high half; `sample` selects ranges of them.
_DRAWN_TOGETHER = 16  # About as many keys are in each of these ranges.
# Each new key moves the entries of this number of old buckets. So all entries have moved after as many new keys as 1/24
# of the number of old buckets. The moves for up to _KEYS_A_MOVE new keys are made together.
_MOVED_A_KEY = 24
_KEYS_A_MOVE = 1024
_COUNT, _FREE_COUNT, _BUCKETS, _ACTIVE, _OLD, _FIRST, _MOVED = range(7)


class Index:
    """Assigns the slots 0, 1, 2, ... to distinct keys in order of arrival; the key 0 ("no value") has the slot -1.

    A later key reuses the slot of a removed key. The index takes 8 bytes per key, 5.3 to 8 bytes of buckets per row and
    8 bytes per free slot. It grows incrementally: each new key moves a few entries to a larger array of buckets, and
    the memory of the old buckets is freed. The index is not thread-safe.
    """

    def __init__(self, memory: TableMemory | None = None) -> None:
        self._memory = memory or TableMemory()
        self._keys = self._memory.array("keys", np.int64)
        self._free = self._memory.array("free", np.int64)
        # One region holds the current buckets, the other the old buckets; growth swaps the two.
        self._regions = [self._memory.array(f"buckets{region}", np.uint32) for region in range(2)]
        self._numbers = self._memory.counts("index", 7)
        if not self._numbers[_BUCKETS]:
            self._regions[0].reserve(_FIRST_BUCKETS)
            self._numbers[_BUCKETS] = _FIRST_BUCKETS

    def __len__(self) -> int:
        return self.slots - self._free_count

    @property
    def _free_count(self) -> int:
        return int(self._numbers[_FREE_COUNT])

    @property
    def _buckets(self) -> np.ndarray:
        return self._regions[self._numbers[_ACTIVE]].array[: self._numbers[_BUCKETS]]

    @property
    def _old(self) -> np.ndarray:
        return self._regions[1 - self._numbers[_ACTIVE]].array[: self._numbers[_OLD]]

    @property
    def _moved(self) -> int:
        return int(self._numbers[_MOVED])

    def _probed(self) -> tuple[np.ndarray, np.ndarray, np.int64, np.int64, np.ndarray]:
        """Returns the arguments (buckets, old, first, moved, keys) of the kernels that look keys up."""
        first, moved = self._numbers[_FIRST:]
        return self._buckets, self._old, first, moved, self._keys.array

    @property
    def slots(self) -> int:
        """The number of slots, used or free."""
        return int(self._numbers[_COUNT])

    @property
    def keys(self) -> np.ndarray:
        """The keys, int64[slots], a view in slot order, 0 for a free slot; valid until the index changes."""
        return self._keys.array[: self.slots]

    @property
    def nbytes(self) -> int:
        buckets, old, moved = len(self._buckets), len(self._old), self._moved
        if old:  # Both are in the order of the hashes: the moved entries fill the new buckets in order.
            buckets = old - moved + buckets * moved // old
        return buckets * 4 + (self.slots + self._free_count) * 8

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns the slots of the keys, int64[U]; -1 for an unknown key."""
        return self.find_and_count(keys)[0]

    def find_and_count(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns (the slots as `find` does, the number of unknown keys other than 0)."""
        slots = np.empty(len(keys), np.int64)
        return slots, index_kernels.find(*self._probed(), keys, slots)

    def find_or_add(self, keys: np.ndarray) -> np.ndarray:
        """Returns the slots of the keys, int64[U]; unknown keys get free slots, then new slots, in their order.

        Raises OverflowError if the index is full, and UserError if the memory runs out.
        """
        slots, done = np.empty(len(keys), np.int64), 0
        while True:
            old, before = int(self._numbers[_OLD]), self.slots
            if old:
                limit = before + min(_KEYS_A_MOVE, max(old // _MOVED_A_KEY, 1))
            else:
                limit = int(self._numbers[_BUCKETS]) * 3 // 4
            self._keys.reserve(min(limit, before + len(keys) - done))
            done, free_count, count = index_kernels.find_or_add(
                *(*self._probed(), self._free.array, self._free_count, before, limit, keys, slots, done)
            )
            self._numbers[_FREE_COUNT], self._numbers[_COUNT] = free_count, count
            if old:
                at_once = done < len(keys) and count < limit
                self._move(old if at_once else _MOVED_A_KEY * (count - before))
            elif done < len(keys):
                self._grow()
            if done == len(keys):
                return slots

    def free_slots(self, count: int) -> np.ndarray:
        """Returns int64[n], the free slots that the next `count` new keys get; fewer if there are fewer free slots."""
        free_count = self._free_count
        return self._free.array[max(free_count - count, 0) : free_count].copy()

    def sample(self, origin: int, share: float) -> np.ndarray:
        """Returns int64[n], the slots of a random sample of about the fraction `share` of the keys.

        Which keys are drawn depends on the keys and `origin`, not on their slots. They come from many small ranges of
        hashes: if the keys of a sample are removed, all clusters of the index become shorter alike.
        """
        ranges = max(int(share * len(self)) // _DRAWN_TOGETHER, 1) if share < 1 else 1
        width = int(min(share, 1) * _HASHES) // ranges
        start = int(key_kernels.mix(np.uint64(origin % 2**64))) % _HASHES
        room = int(len(self) * share * 1.1) + 1000
        while True:
            slots = np.empty(room, np.int64)
            count = index_maintenance.sample(self._buckets, self._old, self._keys.array, start, width, ranges, slots)
            if count <= room:
                return slots[:count]
            room = count

    def remove(self, keys: np.ndarray) -> np.ndarray:
        """Removes `keys`, int64[U], and returns the slots that they had, int64[U]; -1 for an unknown key."""
        slots = np.empty(len(keys), np.int64)
        index_maintenance.remove(*self._probed(), keys, slots)
        freed, free_count = slots[slots >= 0], self._free_count
        self._free.reserve(free_count + len(freed))
        self._free.array[free_count : free_count + len(freed)] = freed
        self._numbers[_FREE_COUNT] += len(freed)
        return slots

    def reserve(self, count: int) -> None:
        """Makes room for `count` keys at once, which takes less time than growing while they arrive."""
        if int(self._numbers[_BUCKETS]) * 3 // 4 < count:
            self._move_all()
            self._grow(count // 3 * 4 + 4)
            self._move_all()

    def clear(self) -> None:
        """Removes all keys and keeps the memory."""
        self._buckets.fill(0)
        self._old.fill(0)
        self._numbers[[_OLD, _COUNT, _FREE_COUNT]] = 0

    def _grow(self, least: int = 0) -> None:
        before, active = int(self._numbers[_BUCKETS]), int(self._numbers[_ACTIVE])
        if before == MOST_BUCKETS:
            raise OverflowError(f"an index holds at most {MOST_BUCKETS * 3 // 4} keys")
        first, buckets = index_maintenance.end_of_gap(self._buckets), min(max(before * 3 // 2, least), MOST_BUCKETS)
        self._regions[1 - active].reserve(buckets)
        self._numbers[_BUCKETS:] = buckets, 1 - active, before, first, 0

    def _move_all(self) -> None:
        while old := int(self._numbers[_OLD]):
            self._move(old)

    def _move(self, most: int) -> None:
        old, first = int(self._numbers[_OLD]), int(self._numbers[_FIRST])
        moved = index_maintenance.move(*self._probed(), most)
        self._numbers[_MOVED] = moved
        start = first if moved < old else 0
        self._regions[1 - self._numbers[_ACTIVE]].release(start, min(first + moved, old), self._memory.free)
        if moved == old:
            self._numbers[_OLD] = 0
