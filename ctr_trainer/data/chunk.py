"""What a source format hands to the encoder, and what the encoder makes of a column of it."""

import collections.abc
import dataclasses

import numpy as np
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


@dataclasses.dataclass
class Encoded:
    """A column of the data set and what is wrong with it.

    Attributes:
      column: pyarrow Array of n rows.
      bad: bool[n], the rows that cannot be used; None for none.
      expected: what those should have been, as `a finite number`.
      cure: what in the feature spec may mend them, as the end of a message.
      weights: list<float32>, the weights of a bag's values; None where it has none.
      lengths: int[n], how many values each row of a list has, before a cut; None of what is no list.
      odd: a value that looks as if it were several, as `[1, 2]`; None where none was seen.
    """

    column: pa.Array
    bad: np.ndarray | None = None
    expected: str = ""
    weights: pa.Array | None = None
    lengths: np.ndarray | None = None
    odd: str | None = None
    cure: str = ""
