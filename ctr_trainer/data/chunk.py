"""What a source format hands to the encoder."""

import collections.abc
import dataclasses

import pyarrow as pa


@dataclasses.dataclass
class Chunk:
    """Consecutive rows of one source file.

    Attributes:
      table: the source's columns, strings or numbers, null where missing.
      file: the file they come from, for messages.
      line_of: the line in the file, from 1, of a row of the table. Called for bad rows only, so it may be slow.
      first_line_hint: what a bad row in the file's line 1 may come from, for its message.
    """

    table: pa.Table
    file: str
    line_of: collections.abc.Callable[[int], int]
    first_line_hint: str = ""

    def slice(self, start):
        """-> the rows from `start` on."""
        return dataclasses.replace(self, table=self.table.slice(start), line_of=lambda row: self.line_of(start + row))
