"""The interfaces of a publication's target and reader, and the functions that open them by URL."""

import threading
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from ctr_trainer.live.publication.cluster import is_cluster
from ctr_trainer.live.publication.cluster_reader import ClusterReader
from ctr_trainer.live.publication.cluster_target import ClusterTarget
from ctr_trainer.live.publication.directory_reader import DirectoryReader
from ctr_trainer.live.publication.directory_target import DirectoryTarget
from ctr_trainer.live.publication.records import Place, Record
from ctr_trainer.settings.training_configs import GRACE_SECONDS, RedisFiles
from ctr_trainer.system.files.paths import Path

_NO_FILES = RedisFiles()


class Target(Protocol):
    """The place to which a publication is delivered. It holds the fence of the place until `close`.

    Meanwhile, every other process gets an error that names the holder. A process that has lost the fence cannot write a
    record.
    """

    def newest_epoch(self, holder: str) -> int | None:
        """Returns the epoch of the newest record of a holder's generation; None if this is not the current generation.

        Raises NeedsBase: the place has lost rows that were delivered.
        """

    def deliver(self, record: Record, directory: Path) -> None:
        """Writes the rows and the tower of a record, then the record itself. A repeated call is harmless.

        The base of a new holder begins a new generation, whose number the place chooses.

        Args:
          record: a base if `newest_epoch` returns None; otherwise the record of the next epoch.
          directory: the generation's directory, which has the record's files. The caller has checked them.

        Raises UserError: the place cannot take the record. The same call may succeed later.
        """

    def tidy(self) -> None:
        """Removes data that readers no longer need, if there is some. Another thread may call `deliver` meanwhile."""

    def close(self) -> None:
        """Releases the fence."""


class RowReader(Protocol):
    """Reads the rows and the dense tower of one record of a publication.

    While a record is served, `await_newer` waits for a newer one, and `refresh` prepares it. The server loads its
    tower, and calls `advance` while no batch is under way, so that the rows and the tower always belong to the same
    record. One thread calls these three. Other threads may call `read` concurrently.

    Attributes:
      is_local: whether the rows are on this host, so that `read` does not wait for a network.
      record: the record that is served; its `tables` have the configurations of the tables.
      unreadable: why the served rows cannot be read, as their place has lost them or does not answer; "" if they can.
      lookups, hits: number of rows that were looked up in a cache, and number that it had; 0 without a cache.
    """

    is_local: bool
    lookups: int
    hits: int

    @property
    def record(self) -> Record: ...

    @property
    def unreadable(self) -> str: ...

    def await_newer(self, seconds: float, ended: threading.Event) -> bool:
        """Waits at most `seconds` for a record that `refresh` has not seen. Returns whether one may be there.

        It does not notice a record in a store, nor a new generation in a directory: call `refresh` now and then, too.
        """

    def refresh(self) -> Record | None:
        """Prepares the newest record and returns it; returns None if it is served already.

        `record` and the results of `read` do not change, except that rows of a cluster may be one epoch newer.

        Raises:
          RowsLost: the place has lost rows.
          UserError: the publication cannot be read. The current record stays served.
        """

    def advance(self) -> None:
        """Serves the record that `refresh` returned; does nothing if it returned None. Takes microseconds."""

    def read(self, table: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads the rows of distinct int64[U] keys of a table that `record` has.

        Returns:
          (float32[U, weights], zeros for a key without a row; bool[U], whether a key has a row).

        Raises:
          RowsAhead: the rows are more than one epoch ahead of `record`; only a cluster's reader raises it.
          RowsLost: the place has lost rows.
          UserError: the rows cannot be read in time.
        """

    def tower(self, record: Record) -> AbstractContextManager[str]:
        """Yields a local directory with the dense tower, a SavedModel, of the served or the prepared record.

        Raises UserError: its files are missing, damaged or replaced.
        """

    def close(self) -> None:
        """Releases memory, files and connections."""


def open_target(url: Place, redis: RedisFiles, grace_secs: float = GRACE_SECONDS) -> Target:
    """Opens the target at a path or URL of a directory, or the `redis://` or `rediss://` URL of a cluster.

    What a newer record replaces stays for readers for `grace_secs`.
    """
    return ClusterTarget(str(url), redis, grace_secs) if is_cluster(url) else DirectoryTarget(url, grace_secs)


def open_reader(url: Place, redis: RedisFiles = _NO_FILES, cache_rows: int = 100_000) -> RowReader:
    """Opens the reader of a publication, whose `url` has the same forms as for `open_target`.

    Rows of a directory are copied to the directory of temporary files. For `cache_rows`, see `ClusterReader`.
    """
    if is_cluster(url):
        return ClusterReader(str(url), redis, cache_rows)
    return DirectoryReader(str(url))
