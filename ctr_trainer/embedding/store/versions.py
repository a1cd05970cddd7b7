"""Which rows changed since somebody last saw them."""

import dataclasses

import numpy as np

from ctr_trainer.embedding.memory.growable_array import GrowableArray
from ctr_trainer.embedding.store import version_kernels
from ctr_trainer.messages.errors import UserError

# The version of a row that is not there: it reads as its initial row, which any worker can make for itself.
ABSENT = 0
# What an asker knows who wants the row whatever its version is.
NONE_KNOWN = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class ChangedRows:
    """An answer that leaves out the rows the asker knows already.

    Attributes:
      versions: uint32[U], of each key that was asked for, as of the answer.
      positions: int64[n], ascending: which of the keys have another row than the asker knows, or would work out.
      rows: theirs: float32[n, width]; from a Store, as the codec of the question encodes them.
    """

    versions: np.ndarray
    positions: np.ndarray
    rows: np.ndarray

    def encoded(self, codec):
        """-> the same, its rows as a `RowCodec` encodes them."""
        return dataclasses.replace(self, rows=codec.encode(self.rows))


class Versions:
    """A version for each slot of a table: the number of the push that changed its row last, 4 bytes a row.

    Numbers are not used twice, also not after `clear`, so a row that an asker knows under its present version is
    bitwise the row it knows. Not safe to use from several threads at a time.
    """

    def __init__(self):
        self._array = GrowableArray(np.uint32)
        self._count = 0
        self._last = ABSENT

    @property
    def nbytes(self):
        return self._count * 4

    def next(self):
        """-> the number of the push now beginning.

        Raises:
          UserError: all 4 billion are used up.
        """
        if self._last + 1 == NONE_KNOWN:
            raise UserError("a table took 4,294,967,294 pushes, all that row versions can count: restart the service")
        self._last += 1
        return self._last

    def created(self, slots, size):
        """These slots, int64[U], got a row, of which nobody knows; the table has `size` slots now."""
        self.reserve(size)[slots] = ABSENT

    def reserve(self, count):
        """-> the array uint32[>= count], by slot; ABSENT where no push has reached the slot."""
        self._array.reserve(count)
        self._count = max(self._count, count)
        return self._array.array

    def differ(self, slots, known):
        """Compares the rows at `slots` with what an asker knows.

        Args:
          slots: int64[U]; -1 for a row that is not there.
          known: uint32[U], the versions that the asker has, or None, where it has none.

        Returns:
          (versions uint32[U], positions int64[n] of the rows that are of another version than the asker's)
        """
        versions = np.empty(len(slots), np.uint32)
        positions = np.empty(len(slots), np.int64)
        if known is None:
            known = np.full(len(slots), NONE_KNOWN, np.uint32)
        count = version_kernels.differ(self._array.array, slots, known, versions, positions)
        return versions, positions[:count]

    def clear(self):
        """For a table that forgets its rows."""
        self._array.array[: self._count] = ABSENT
        self._count = 0
