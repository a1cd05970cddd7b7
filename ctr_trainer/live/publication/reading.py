"""Shared parts of the readers: packed rows in memory-mapped files, and errors about rows."""

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.snapshot.packed_rows import unpack, value_bytes
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError

_FIRST_ROWS = 1024
_ROWS_A_LOCK = 4096  # Rows that are written while the lock is held. A reader waits for at most these.
_PAUSE_SECONDS = 0.002


class MappedRows:
    """The rows of one table in a memory-mapped temporary file. One thread changes them; any thread may call `find`.

    The file has no name, so it disappears when this process ends or is killed. The index takes 16 bytes of memory per
    key. `packed_rows` describes the rows and their dtype.
    """

    def __init__(self, config: TableConfig, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self._width = value_bytes(config, dtype)
        self._index, self._lock = Index(), threading.Lock()
        self._file = tempfile.TemporaryFile()
        self._values = np.empty((0, self._width), np.uint8)

    def __len__(self) -> int:
        return len(self._index)

    def put(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Adds or replaces the rows uint8[n, value_bytes] of distinct int64[n] keys.

        Raises UserError: the disk is full.
        """
        for first in range(0, len(keys), _ROWS_A_LOCK):
            some = np.require(keys[first : first + _ROWS_A_LOCK], requirements=("C", "A"))
            self._reserve(self._index.slots + len(some))  # Without the lock, because it may take seconds.
            with self._lock:
                slots = self._index.find_or_add(some)
                self._values[slots] = values[first : first + _ROWS_A_LOCK]

    def remove(self, keys: np.ndarray) -> None:
        """Removes the rows of int64[n] keys; ignores keys without a row."""
        for first in range(0, len(keys), _ROWS_A_LOCK):
            with self._lock:
                self._index.remove(np.require(keys[first : first + _ROWS_A_LOCK], requirements=("C", "A")))

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (float32[U, weights] of int64[U] keys, zeros without a row; bool[U] whether a key has a row)."""
        keys = np.require(keys, np.int64, ("C", "A"))
        with self._lock:
            slots = self._index.find(keys)
            found = slots >= 0
            values = self._values[slots[found]]
        weights = np.zeros((len(keys), self.config.weights), np.float32)
        weights[found] = unpack(values, self.config, self.dtype)[0]
        return weights, found

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields all rows as (int64[n] keys, uint8[n, value_bytes]). No thread may put or remove rows meanwhile."""
        for first in range(0, self._index.slots, _ROWS_A_LOCK):
            keys = self._index.keys[first : first + _ROWS_A_LOCK]
            there = keys != 0  # The others are free slots.
            yield keys[there], self._values[first : first + len(keys)][there]

    def settled(self) -> "MappedRows":
        """Merges the changes of `NewerRows`, and returns the result. `find` returns the same rows in the meantime."""
        return self

    def close(self) -> None:
        """Releases memory and disk."""
        with self._lock:
            self._values = np.empty((0, self._width), np.uint8)
            self._index = Index()
            self._file.close()

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._values):
            return
        rows = max(rows, len(self._values) * 3 // 2, _FIRST_ROWS)
        size = rows * self._width
        try:
            os.posix_fallocate(self._file.fileno(), 0, size)  # Otherwise SIGBUS ends the process on a full disk.
            pages = mmap.mmap(self._file.fileno(), size)
        except OSError as error:
            raise UserError(
                f"{tempfile.gettempdir()}: {size >> 20} MiB for the rows of the table {self.config.name}: "
                f"{error.strerror or error}; make room there, or set TMPDIR to a directory with room"
            ) from None
        self._values = np.frombuffer(pages, np.uint8).reshape(rows, self._width)


class NewerRows(MappedRows):
    """The rows of an `earlier` table with changes, which are kept apart from it: changed rows, and removed keys."""

    def __init__(self, earlier: MappedRows) -> None:
        super().__init__(earlier.config, earlier.dtype)
        self._earlier, self._removed, self._removing = earlier, Index(), threading.Lock()

    def put(self, keys: np.ndarray, values: np.ndarray) -> None:
        super().put(keys, values)
        with self._removing:
            self._removed.remove(np.require(keys, requirements=("C", "A")))

    def remove(self, keys: np.ndarray) -> None:
        super().remove(keys)
        with self._removing:
            self._removed.find_or_add(np.require(keys, requirements=("C", "A")))

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keys = np.require(keys, np.int64, ("C", "A"))
        weights, found = self._earlier.find(keys)
        changed, there = super().find(keys)
        weights[there], found[there] = changed[there], True
        with self._removing:
            removed = self._removed.find(keys) >= 0
        weights[removed], found[removed] = 0, False
        return weights, found

    def settled(self) -> MappedRows:
        for keys, values in self.blocks():
            self._earlier.put(keys, values)
        removed = self._removed.keys
        self._earlier.remove(removed[removed != 0].copy())
        return self._earlier

    def close(self) -> None:
        super().close()
        self._earlier.close()


def pause() -> None:
    """Sleeps for 2 ms. A refresh calls it between its parts, so that the threads that answer requests can run."""
    time.sleep(_PAUSE_SECONDS)


class RowsAhead(UserError):
    """The rows are more than one epoch ahead of the served record: refresh, advance, then read again."""


class RowsLost(UserError):
    """The place has lost rows of the served record: requests are refused until all rows are published again."""
