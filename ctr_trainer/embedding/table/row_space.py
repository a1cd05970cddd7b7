"""The array that a table's rows lie in, with the rows that a lookup lends."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory, row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError


class InitialRows:
    """The rows that a table's new keys start with, a pure function of (config.seed, key).

    Args:
      config: a TableConfig.
    """

    def __init__(self, config: TableConfig) -> None:
        self._width, self._seed = config.width, np.uint64(config.seed % 2**64)
        self._dims = np.array(config.dims, np.int64)
        self._scales = np.array(config.init_scales, np.float32)
        self._state = OPTIMIZERS[config.optimizer.name].initial_state(config.dims, config.optimizer)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Returns float32[U, width], the initial rows of `keys`, int64[U], contiguous."""
        rows = np.empty((len(keys), self._width), np.float32)
        self.fill(keys, rows)
        return rows

    def fill(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Sets `rows`, float32[U, width], to the initial rows of `keys`, int64[U], contiguous."""
        row_kernels.initialize(rows, keys, self._seed, self._dims, self._scales, self._state)


class RowSpace:
    """The rows of a table, and behind them the rows that its last lookup lent.

    Args:
      memory: see `Table`.
      width: floats of a row.
    """

    def __init__(self, memory: TableMemory, width: int) -> None:
        self._rows, self._lent_stop = memory.array("rows", np.float32, (width,)), 0

    @property
    def array(self) -> np.ndarray:
        """The rows, float32[capacity, width], in slot order; valid until the next `reserve` or `lend`."""
        return self._rows.array

    def rows(self, slots: int) -> np.ndarray:
        """Returns float32[n, width], the rows of a table with this number of slots, up to the last row that is lent."""
        return self._rows.array[: max(slots, self._lent_stop)]

    def reserve(self, slots: int) -> None:
        """Makes room for the rows of this many slots.

        Raises:
          UserError: the memory is used up.
        """
        self._rows.reserve(slots)

    def lend(self, slots: int, count: int) -> np.ndarray:
        """Makes room for `count` rows that are the asker's until the next `lend` or `end_lending`.

        Args:
          slots: how many slots the table has.

        Returns:
          int64[count], their slots, one after the other.
        """
        self._rows.reserve(slots + count)
        return self._lent(slots, count)

    def end_lending(self) -> None:
        """Takes back what was lent."""
        self._lent_stop = 0

    def _lent(self, first: int, count: int) -> np.ndarray:
        self._lent_stop = first + count
        return np.arange(first, self._lent_stop)


class SharedRowSpace(RowSpace):
    """A `RowSpace` in shared memory, where each worker lends rows in a region of its own.

    The regions lie behind the address space of all rows that the memory could hold, and take memory as they are used.

    Args:
      memory, width: see `RowSpace`.
      member, members: see `RestingSlots`.
    """

    def __init__(self, memory: TableMemory, width: int, member: int, members: int) -> None:
        most = memory_total() // row_bytes(np.float32, (width,))
        self._rows, self._lent_stop = memory.array("rows", np.float32, (width,), most_rows=2 * most), 0
        self._most, self._lendable = most, most // members
        self._first_lent = most + member * self._lendable

    def reserve(self, slots: int) -> None:
        self._check(slots, self._most)

    def lend(self, slots: int, count: int) -> np.ndarray:
        self._check(count, self._lendable)
        return self._lent(self._first_lent, count)

    def _check(self, rows: int, most: int) -> None:
        if rows > most:
            raise UserError(
                f"{rows} embedding rows of {self._rows.array.strides[0]} bytes do not fit into the memory of this "
                f"machine or cgroup (room for {most}): use a smaller max_rows in [[limits]], or narrower embeddings"
            )
