"""The interface of a store, which holds the embedding rows of a training."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.versions import ABSENT, ChangedRows
from ctr_trainer.embedding.store.worker_rows import WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import Advanced, AnyPath


class Store(abc.ABC):
    """Embedding tables by name, shared by the workers of a job.

    Keys are int64[U], distinct within a call and not 0. Rows and deltas are float32[U, lanes] in the table's form, see
    `row_form`. A user's mistake and the loss of a store raise UserError.

    A row has a version, uint32, which each put or sync of it changes. A key without a row has the version 0 and reads
    its initial row. Only versions of the same key can be compared, and only while the store runs.

    Attributes:
      silent_seconds: seconds that requests have waited for a store that did not answer; 0 for a store in this process.
      host_memory: `SharedMemory` for one copy of the rows per host; None if each worker has its own copy.
      has_own_rows: whether all rows are of this job, of its earlier attempts too; `launch` makes several.
    """

    host_memory: SharedMemory | None = None

    @property
    def has_own_rows(self) -> bool:
        return False

    @property
    def silent_seconds(self) -> float:
        return 0.0

    @abc.abstractmethod
    def create_table(self, config: TableConfig) -> None:
        """Makes an empty table. A table that exists with the same TableConfig is not changed."""

    @abc.abstractmethod
    def pull(self, table: str, keys: np.ndarray, versions: np.ndarray) -> ChangedRows:
        """Returns `ChangedRows`: the rows whose version is not the caller's, `versions` uint32[U]. Creates none."""

    @abc.abstractmethod
    def put(self, table: str, keys: np.ndarray, rows: np.ndarray, worker: str, sequence: int) -> None:
        """Overwrites rows of a table without limits, which only one host changes.

        It is applied exactly once, as a sync is, and never after a later put.
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
    ) -> ChangedRows:
        """Adds deltas to rows, and returns the rows that others changed. A missing row gets its initial values first.

        The deltas are added exactly once: not if `sequence` is not greater than the last one of `worker`, a name that
        is unique to each start of a worker, for the table.

        Returns `ChangedRows`: the rows whose version differs from `versions`, uint32[U], with `deltas` added; all rows
        for None or for a repeated sync. Each other row equals, bit by bit, the worker's row plus its delta in the
        table's form.
        """

    @abc.abstractmethod
    def advance(self, step: int) -> None:
        """Sets the clock of `lru` and `ttl_steps` to the global step `step`, and evicts the expired rows."""

    def save(self, path: AnyPath, step: int, since: str | None = None) -> list[FileEntry]:
        """Writes every table, in its state at the call, into the directory `path`; pulls and syncs continue.

        `step` is part of the names of a delta's files. `since` is the `snapshot` of the last `save` or `restore` of
        this store, to write only the rows that changed since then; if it is another one or None, all rows are written.

        Returns the file entries that `restore` takes. Their `since` is None if all rows were written.
        """
        return self.begin_save(path, step, since)()

    @abc.abstractmethod
    def begin_save(
        self, path: AnyPath, step: int, since: str | None = None, by_key: bool = False
    ) -> Callable[[], list[FileEntry]]:
        """Captures the state of all rows, which may then change, and returns a function that completes `save`.

        With `by_key`, the files have the rows in the order of their keys, except for rows that change meanwhile.

        The function waits until all files are written; any thread may call it. A store in this process writes the rows
        before this returns, because training changes its rows without a lock.
        """

    @abc.abstractmethod
    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None = None) -> list[FileEntry]:
        """Writes the rows that changed since an epoch of a publication into `path`, as they are at the call or later.

        `dtype` is one of `packed_rows`. `after` is the last published epoch, whose files of this store exist; None
        writes all rows. The next epoch contains the rows that were not written.

        Raises UserError if the files cannot be written, or if the store does not know which rows changed since `after`;
        then publish all rows.
        """

    @abc.abstractmethod
    def restore(self, path: AnyPath, files: Sequence[FileEntry], advanced: Advanced = lambda text: None) -> None:
        """Replaces all rows with those of a chain of snapshots in `path`, which any number of shards may have written.

        `files` are the result of `save` for a full snapshot, followed by its result for each delta. If a file is
        invalid, the rows do not change. Calls `advanced` as the work progresses.
        """

    def reopen(self) -> None:
        """Continues with the current rows, after another client of the store has called `restore`.

        Until then, a service refuses this client's requests with ServiceLost. Discard all copies of rows first.
        """
        return

    def look(self) -> None:
        """Raises ServiceLost if the rows are known to be lost. Sends no request and takes microseconds."""
        return

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns {"tables": {name: {"rows", "bytes", "created", "restored", "admitted", "evicted", "refused"}}}."""

    def close(self) -> None:
        """Ends all use of the store."""
        return


class StoreReader(WorkerRows):
    """Reads the rows of each lookup from the store, and neither creates nor trains rows. It is not thread-safe."""

    def __init__(self, store: Store, config: TableConfig) -> None:
        self.config = config
        self._stored = np.empty((0, config.form.lanes), np.float32)
        self._store = store

    def take(self, slots: np.ndarray) -> np.ndarray:
        """Returns float32[U, weights] of the rows of the last lookup."""
        return self.config.form.take(self._stored, slots, weights_only=True)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns int64[U], the positions of the keys; -1 for a key without a row."""
        found = self._store.pull(self.config.name, keys, np.full(len(keys), ABSENT, np.uint32))
        self._stored, slots = found.rows, np.full(len(keys), -1)
        slots[found.positions] = np.arange(len(found.positions))
        return slots

    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        raise RuntimeError(f"table {self.config.name} is read-only here: no key gets a row")

    def apply_gradients(
        self, keys: np.ndarray, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float
    ) -> None:
        raise RuntimeError(f"table {self.config.name} is read-only here: no row is trained")
