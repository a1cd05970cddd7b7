"""What a server asks of a published model: its rows and its dense tower, of one record at a time."""

from typing import Protocol

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.records import Record


class RowsAhead(UserError):
    """Rows were read that are more than one epoch ahead of the served record: refresh, advance, then read again."""


class RowReader(Protocol):
    """The rows and the tower of a publication; `open_reader` makes one.

    A newer record is got ready beside the one that is served, and takes its place when the server says so:

        reader = open_reader("models/ctr/publication")
        tower = load(reader.dense_path())
        while serving:
            newer = reader.refresh()
            if newer is not None:
                tower_of_newer = load(reader.dense_path(newer))
                with no_batch_under_way:
                    reader.advance()
                    tower = tower_of_newer

    So the rows of `read` are never more than one epoch apart from `record`, and the tower is the record's.

    `refresh` and `advance` are for one thread, `read` is for another one or several.

    Attributes:
      record: the `records.Record` that is served; its `tables` have the configurations of the tables.
    """

    record: Record

    def refresh(self):
        """Looks for a newer record, and gets it ready. `record` and what `read` gives stay as they are, but for rows
        of the epoch after that of `record`.

        Returns:
          the newer record, which `advance` serves; None if there is none. Until `advance` it is the same one.

        Raises:
          UserError: the publication cannot be read; says where and why. What is served goes on to be served.
        """

    def advance(self):
        """Serves the record that `refresh` has returned; does nothing if it returned None. Takes microseconds."""

    def read(self, table, keys):
        """-> float32[U, weights], the weights of the rows; zeros for a key that was never trained or was removed.

        Args:
          table: its name.
          keys: int64[U], distinct.

        Raises:
          RowsAhead: the rows are more than one epoch ahead of `record`; a directory's reader never raises it.
          UserError: there is no such table, or the rows cannot be read in time.
        """

    def dense_path(self, record=None):
        """-> the local directory of a record's SavedModel, of `record` or of the one that `refresh` has returned.

        It is there until a record with another tower was served for a while.
        """

    def age_secs(self):
        """-> seconds since the rows of `record` were taken from the tables or shards; see `Record.time`."""

    def close(self):
        """Gives back memory, files and connections."""
