"""The rows that a source format gives to the encoder, and the columns that the encoder makes of them."""

import collections.abc
import dataclasses
import typing

import numpy as np
import pyarrow as pa


@dataclasses.dataclass
class Chunk:
    """Consecutive rows of one source file.

    Attributes:
      table: the source's columns, strings or numbers; null for a missing value.
      file: path of the source file, for messages.
      line_of: f(row of the table) -> its line in the file, from 1. It is called for bad rows only, so it may be slow.
      first_line_hint: possible reason for a bad row in line 1 of the file, the end of its message.
    """

    table: pa.Table
    file: str
    line_of: collections.abc.Callable[[int], int]
    first_line_hint: str = ""

    @property
    def most_rows(self):
        return len(self.table)

    def parse(self, bad_rows):
        """-> the Chunk itself; see `Block`."""
        return self


class Block(typing.Protocol):
    """Consecutive rows of one source file, which may still have to be parsed.

    Attributes:
      most_rows: number of its rows, or a larger number if that is not known yet.
    """

    most_rows: int

    def parse(self, bad_rows) -> Chunk:
        """-> the Chunk of its good rows. It is called once, in any thread.

        Args:
          bad_rows: BadRows or FoundBadRows, which gets each row that is left out.
        """


@dataclasses.dataclass
class Encoded:
    """An encoded column of the data set, and its bad rows.

    Attributes:
      column: pyarrow Array of n rows.
      bad: bool[n], whether each row is unusable; None if no row is.
      expected: what the bad rows should have held, as `a finite number`.
      cure: setting of the feature spec that may mend the bad rows, the end of their message.
      weights: list<float32>, the weights of a bag's values; None if the bag has no weights.
      lengths: int[n], number of values of each row's list, before the cut at `max_length`; None if the column has no
        lists.
      odd: a value that looks like several values, as `[1, 2]`; None if there was no such value.
    """

    column: pa.Array
    bad: np.ndarray | None = None
    expected: str = ""
    weights: pa.Array | None = None
    lengths: np.ndarray | None = None
    odd: str | None = None
    cure: str = ""
