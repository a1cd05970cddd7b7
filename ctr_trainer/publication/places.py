"""The two ends of a place where a publication lies: what a target and a reader do, and how a URL opens them."""

from typing import Protocol

import numpy as np

from ctr_trainer.publication.cluster import is_cluster
from ctr_trainer.publication.cluster_reader import ClusterReader
from ctr_trainer.publication.cluster_target import ClusterTarget
from ctr_trainer.publication.directory_reader import DirectoryReader
from ctr_trainer.publication.directory_target import DirectoryTarget
from ctr_trainer.publication.records import Record
from ctr_trainer.settings.publish_config import RedisFiles


class Target(Protocol):
    """A place that readers look at; `open_target` makes one, which holds the fence of the place until `close`.

    While one process holds the fence, any other is refused by the name of the holder. A process that has lost the fence
    cannot make a record there.
    """

    def newest_epoch(self, holder):
        """-> the epoch of the newest record that a holder's generation has there; None if another generation is
        current, or none.

        Raises:
          NeedsBase: rows that were delivered are lost there.
        """

    def deliver(self, holder, record, directory):
        """Makes a record's rows and its tower part of the place, and then the record; all of it may be done again.

        A base of a holder that is not the current one begins a new generation there, whose number is the place's own.

        Args:
          holder: of the generation.
          record: `records.Record`; the first one, or the one after that of `delivered`.
          directory: `Path` of the generation's directory, which has the record's files; they were checked.

        Raises:
          UserError: the place cannot take it; says why. The same call may succeed later.
        """

    def tidy(self):
        """Removes some of what no reader needs any more, for some tens of milliseconds or beside the caller."""

    def tidy_all(self):
        """Removes all that no reader needs any more; returns when it is done."""

    def close(self):
        """Gives the fence back."""


class RowReader(Protocol):
    """The rows and the tower of a publication; `open_reader` makes one.

    A newer record is got ready while another one is served, and takes its place when the server says so:

        reader = open_reader("models/ctr/publication")
        tower = load(reader.dense_path())
        while serving:
            newer = reader.refresh()
            if newer is not None:
                tower_of_newer = load(reader.dense_path(newer))
                with no_batch_under_way:
                    reader.advance()
                    tower = tower_of_newer

    So the rows and the tower are those of `record`.

    `refresh` and `advance` are for one thread, `read` is for another one or several.

    Attributes:
      record: the `records.Record` that is served; its `tables` have the configurations of the tables.
      lost: what the place has lost of the served rows, as a sentence; "" if nothing is known to be lost.
      lookups: number of keys that were looked up in a cache of rows.
      hits: number of these keys that were found there.
    """

    record: Record
    lost: str
    lookups: int
    hits: int

    def refresh(self) -> Record | None:
        """Looks for newer records, and gets the newest one ready.

        `record` and what `read` gives stay as they are; a cluster also gives rows of the epoch after that of `record`.

        Returns:
          the newest record, which `advance` serves; None if `record` is the newest one.

        Raises:
          RowsLost: the place has lost rows.
          UserError: the publication cannot be read; says where and why. What is served stays served.
        """

    def advance(self) -> None:
        """Serves the record that `refresh` has returned; does nothing if it returned None. Takes microseconds."""

    def read(self, table: str, keys: np.ndarray) -> np.ndarray:
        """Returns float32[U, weights], the weights of the rows; zeros for a key that has none in this record.

        Args:
          table: its name.
          keys: int64[U], distinct.

        Raises:
          RowsAhead: the rows are more than one epoch ahead of `record`; a directory's reader never raises it.
          RowsLost: the place has lost rows.
          UserError: there is no such table, or the rows cannot be read in time.
        """

    def dense_path(self, record: Record | None = None) -> str:
        """Returns the local directory of the SavedModel of `record`, or of a record that `refresh` has returned.

        It is there until a record with another tower was served for a while.
        """

    def age_secs(self) -> float:
        """Returns the seconds since the rows of `record` were taken from the tables or shards; see `Record.time`."""

    def close(self) -> None:
        """Gives back memory, files and connections."""


def open_target(url, redis=RedisFiles()):  # noqa: B008, it is frozen
    """-> the `Target` at a path or URL; `close` gives it back.

    Args:
      url: path or URL of a directory, or `redis://` or `rediss://` of a cluster.
      redis: `RedisFiles` of a cluster.

    Raises:
      UserError: another process publishes there, or the place does not answer.
    """
    if is_cluster(url):
        return ClusterTarget(url, redis)
    return DirectoryTarget(url)


def open_reader(url, cache_dir="", redis=RedisFiles(), cache_rows=100_000, cache_secs=1.0):  # noqa: B008, it is frozen
    """-> the `RowReader` of a publication.

    Args:
      url: path or URL of the publication's directory, or `redis://` or `rediss://` of a cluster.
      cache_dir: local directory for rows and towers; "" for the system's directory of temporary files.
      redis: `RedisFiles` of a cluster.
      cache_rows, cache_secs: of a cluster, see `ClusterReader`.

    Raises:
      UserError: there is no publication, or it cannot be read.
    """
    if is_cluster(url):
        return ClusterReader(str(url), redis, cache_dir, cache_rows, cache_secs)
    return DirectoryReader(url, cache_dir)
