"""The interface of the place that keeps the embedding rows of a training."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.row_codec import PLAIN, RowCodec
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.embedding.store.worker_rows import WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.path import AnyPath
from ctr_trainer.system.messages.errors import ServiceLost

MakeCopies = Callable[["Store", TableConfig], WorkerRows]  # Makes the copies of a worker, see `Store.worker_rows`.


class Store(abc.ABC):
    """Embedding tables by name, shared by the workers of a job.

    Keys are int64[U], distinct within a call and not 0; rows and deltas are float32[U, width] as TableConfig lays them
    out. A user's mistake raises UserError, and so does a store that is lost.

    A row has a version, uint32, which each push to it changes. A key without a row has the version 0 and reads its
    initial row. Versions can be compared for one key only, and only within one life of the store.

    Attributes:
      silent_seconds: seconds that requests have waited for a store that did not answer; 0 of a store in this process.
      is_guarded: whether the store still answers after it is lost, see `Guard`.
      lost: the ServiceLost that a guarded store has met; None if it has met none.
      host_memory: `SharedMemory` for one copy of the rows per host; None if each worker has copies of its own.
    """

    is_guarded = False
    lost: ServiceLost | None = None
    host_memory: SharedMemory | None = None

    @property
    def silent_seconds(self) -> float:
        return 0.0

    @abc.abstractmethod
    def create_table(self, config: TableConfig) -> None:
        """Makes an empty table. If the table exists with the same TableConfig, it stays as it is."""

    def worker_rows(self, config: TableConfig, copies: MakeCopies) -> WorkerRows:
        """Returns the `WorkerRows` of a table that `create_table` made: a worker's copies of them.

        Args:
          config: the table's TableConfig.
          copies: makes the copies. A store in this process does not call it:
            its workers train the store's own rows.
        """
        return copies(self, config)

    @abc.abstractmethod
    def pull(self, table: str, keys: np.ndarray, missing: str = "initial") -> np.ndarray:
        """Returns the rows of `keys`, float32[U, width]; creates no row.

        A key without a row reads its initial row, or zeros if `missing` is `zeros`.
        """

    @abc.abstractmethod
    def pull_newer(self, table: str, keys: np.ndarray, versions: np.ndarray, codec: RowCodec = PLAIN) -> ChangedRows:
        """Returns `ChangedRows`: the rows whose version is not the one that the asker knows, encoded by `codec`.

        The known versions are uint32[U].
        """

    @abc.abstractmethod
    def push(self, table: str, keys: np.ndarray, deltas: np.ndarray, worker: str, sequence: int) -> None:
        """Adds deltas to rows. A missing row is created with its initial values first.

        A push is applied exactly once: if `sequence` is not greater than the worker's last one for that table, the push
        does nothing.

        Args:
          deltas: float32[U, width].
          worker: a name that is new each time a worker starts.
          sequence: grows with each push of this worker to this table.
        """

    @abc.abstractmethod
    def put(self, table: str, keys: np.ndarray, rows: np.ndarray, worker: str, sequence: int) -> None:
        """Sets the rows of a table without limits, whatever they were; for rows that one host alone changes.

        A put is applied exactly once, and never after a later one, as a `push` is.
        """

    @abc.abstractmethod
    def sync(
        self,
        table: str,
        keys: np.ndarray,
        deltas: np.ndarray,
        worker: str,
        sequence: int,
        versions: np.ndarray | None = None,
        codec: RowCodec = PLAIN,
    ) -> ChangedRows:
        """Pushes deltas and brings back the rows that others changed, in one round trip.

        Args:
          deltas: float32[U, width] as `codec` encodes them.
          versions: uint32[U], the version of each row that the worker knows; None brings all rows back.
          codec: encodes the deltas and the rows of the answer.

        Returns:
          `ChangedRows`: the rows whose version was not the one that the worker knew, with `deltas` added. Each other
          row is, bit by bit, the row that the worker knew plus its delta. A repeated sync brings all rows back.
        """

    @abc.abstractmethod
    def advance(self, step: int) -> None:
        """Sets the clock of `lru` and `ttl_steps` to the global step `step`, and evicts the rows that have expired."""

    def save(self, path: AnyPath, step: int, since: str | None = None) -> list[FileEntry]:
        """Writes every table, as it is at the moment of the call, into the directory `path`; pulls and pushes continue.

        Args:
          path: the directory; made if it does not exist.
          step: the global step, which goes into the names of a delta's files.
          since: the `snapshot` of the last `save` or `restore` of this store: only rows that changed since then are
            written. If it is None or another snapshot, all rows are written.

        Returns:
          what `restore` takes. Each `since` is None if all rows were written.
        """
        return self.begin_save(path, step, since)()

    @abc.abstractmethod
    def begin_save(self, path: AnyPath, step: int, since: str | None = None) -> Callable[[], list[FileEntry]]:
        """Saves in two parts: all rows are known as they are now when this returns, and may change from then on.

        A store in this process writes them at once, since it is not told when its rows change.

        Returns:
          a function that returns what `save` does, once all files are written; it may be called in another thread.
        """

    @abc.abstractmethod
    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None = None) -> list[FileEntry]:
        """Writes the rows that changed since an epoch of a publication into the directory `path`; rows may change.

        Each row is whole, and as it was at the call or later.

        Args:
          path: the directory; made if it does not exist.
          epoch: number of the epoch that is written.
          dtype: type of the packed rows, see `packed_rows`.
          after: the epoch that was published last, with the files that this store wrote for it; None writes all rows.

        Raises:
          UserError: the files cannot be written, or the store does not know what changed since `after`: publish all
            rows. What was to be written goes into the next epoch.
        """

    @abc.abstractmethod
    def restore(self, path: AnyPath, files: Sequence[FileEntry]) -> None:
        """Replaces all rows by the rows of a chain of snapshots, written by any number of shards.

        If a file is bad, the rows stay as they are.

        Args:
          path: the directory of all files of the chain.
          files: what `save` returned for a full snapshot, followed by what it returned for each of its deltas.
        """

    @abc.abstractmethod
    def clear(self) -> None:
        """Forgets every row; the tables stay."""

    def reopen(self) -> None:
        """Continues with the rows as they are now.

        When one of several users of a store calls `restore` or `clear`, each other user forgets the rows that it knows
        and calls `reopen`. Until then the requests of that user to a service are refused with ServiceLost.
        """
        return

    def look(self) -> None:
        """Raises ServiceLost if the rows are known to be gone, without a request; takes microseconds."""
        return

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns the counters of `Table` for each table.

        Returns:
          {"tables": {name: {"rows", "bytes", "created", "restored", "admitted", "evicted", "refused": int}}, ...}
        """

    def close(self) -> None:
        """Ends the use of the store."""
        return


class StoreReader(WorkerRows):
    """Reads the rows of each lookup from the store; creates and trains no row. For one thread."""

    def __init__(self, store: Store, config: TableConfig) -> None:
        self.config = config
        self._rows = np.empty((0, config.width), np.float32)
        self._store = store

    @property
    def rows(self) -> np.ndarray:
        """float32[U, width], the rows of the last lookup; valid until the next lookup."""
        return self._rows

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns int64[U], the places of the keys' rows in `rows`; an unknown key has a row of zeros."""
        self._rows = self._store.pull(self.config.name, keys, missing="zeros")
        return np.arange(len(keys))

    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        raise RuntimeError(f"table {self.config.name} is read-only here: no key gets a row")

    def apply_gradients(self, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        raise RuntimeError(f"table {self.config.name} is read-only here: no row is trained")
