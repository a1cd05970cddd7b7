"""Which rows changed since somebody last saw them."""

import dataclasses

import numpy as np

from ctr_trainer.embedding.memory.growable_array import GrowableArray
from ctr_trainer.embedding.store import version_kernels
from ctr_trainer.messages.errors import UserError

# The version of a key without a row: the key reads its initial row, which each worker can compute.
ABSENT = 0
# The version that an asker names to get the row whatever its version is.
NONE_KNOWN = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class ChangedRows:
    """An answer that leaves out the rows that the asker already knows.

    Attributes:
      versions: uint32[U], the version of each key in the request, as of the answer.
      positions: int64[n], ascending: the positions, among the keys of the request, of the rows that the asker neither
        knows nor can compute.
      rows: float32[n, width], the rows at these positions; from a Store they are encoded by the codec of the request.
    """

    versions: np.ndarray
    positions: np.ndarray
    rows: np.ndarray

    def encoded(self, codec):
        """-> the same ChangedRows, its rows encoded by a `RowCodec`."""
        return dataclasses.replace(self, rows=codec.encode(self.rows))


class Versions:
    """A version for each slot of a table: the number of the push that changed its row last, 4 bytes per row.

    No number is used twice, not even after `clear`: if the version that an asker knows is the row's present version,
    the row is, bit by bit, the row that the asker knows. Not safe to use from several threads at a time.
    """

    def __init__(self):
        self._array = GrowableArray(np.uint32)
        self._count = 0
        self._last = ABSENT

    @property
    def nbytes(self):
        return self._count * 4

    def next(self):
        """-> the number of the push that begins now.

        Raises:
          UserError: all 4 billion numbers are used up.
        """
        if self._last + 1 == NONE_KNOWN:
            raise UserError(
                "a table has taken 4,294,967,294 pushes, and row versions count no further: restart the service"
            )
        self._last += 1
        return self._last

    def created(self, slots, size):
        """Told by the table: the slots, int64[U], got new rows, which nobody knows; the table has `size` slots now."""
        self.reserve(size)[slots] = ABSENT

    def reserve(self, count):
        """-> the array uint32[>= count], by slot; ABSENT where no push has reached the slot."""
        self._array.reserve(count)
        self._count = max(self._count, count)
        return self._array.array

    def differ(self, slots, known):
        """Compares the rows at `slots` with what an asker knows.

        Args:
          slots: int64[U]; -1 for a key without a row.
          known: uint32[U], the versions that the asker knows; None if it knows none.

        Returns:
          (versions uint32[U], positions int64[n] of the rows whose version is not the asker's)
        """
        versions = np.empty(len(slots), np.uint32)
        positions = np.empty(len(slots), np.int64)
        if known is None:
            known = np.full(len(slots), NONE_KNOWN, np.uint32)
        count = version_kernels.differ(self._array.array, slots, known, versions, positions)
        return versions, positions[:count]

    def clear(self):
        """Forgets all versions; the table has forgotten its rows."""
        self._array.array[: self._count] = ABSENT
        self._count = 0
