"""The types that source formats and the encoder exchange: blocks, chunks, encoded columns and bad rows."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ctr_trainer.features.columns import Label
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError, cut

# Names of the columns of a converted data set that are not features. A feature's name may not begin with one of these
# prefixes; the name of a source column may.
ID_PREFIX = "id:"
LABEL = "label"
LABEL_PREFIX = "label:"
TIME = "time:"
WEIGHT = "weight"
WEIGHTS_PREFIX = "weights:"
_log = logging.getLogger(__name__)


def label_columns(spec: FeatureSpec) -> dict[str, Label]:
    """Returns the Label of each label column, in the spec's order; {} for an unlabelled spec."""
    if not spec.labelled:
        return {}
    if len(spec.labels) == 1:
        return {LABEL: spec.label}
    return {LABEL_PREFIX + label.name: label for label in spec.labels}


def concatenated(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """Concatenates tables of the data set `name`. Raises UserError if a column has types that cannot be joined."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise UserError(f"data set {name}: {error}; write the column with one type in all files") from error


class BadRow(NamedTuple):
    """A row that cannot be used. `line` is its number in the file, from 1, or None if unknown.

    `column` is None if the row as a whole is wrong. `expected` describes a valid value, such as `a finite number`.
    """

    file: str
    line: int | None
    column: str | None
    value: object
    expected: str


@dataclasses.dataclass
class BadRows:
    """Logs every row that is left out, and stops the conversion at the first bad row beyond the budget.

    `count` rows were left out so far. `unit` is what `BadRow.line` counts: `line` in a text file, otherwise `row`.
    """

    budget: int = 0
    count: int = 0
    unit: str = "line"

    def add(self, rows: Iterable[BadRow]) -> None:
        """Counts and logs bad rows, in the order of the input. Raises UserError if the budget is exceeded."""
        for file, line, column, value, expected in rows:
            at = f"{file}, {self.unit} {line}" + (f", column {cut(repr(column))}" if column else "")
            message = f"{at}: {cut(repr(value))} is not {expected}"
            if self.count == self.budget:
                already = f" ({self.count} bad rows before it were left out)" if self.count else ""
                raise UserError(
                    f"{message}{already}. Correct the row, or increase max_bad_rows (now {self.budget}) to leave out "
                    "more bad rows"
                )
            self.count += 1
            _log.warning("bad row %d of at most %d, left out: %s", self.count, self.budget, message)


@dataclasses.dataclass
class Chunk:
    """Consecutive rows of one source file, in the source's columns: strings or numbers, null for a missing value.

    `line_of` is f(row of the table) -> its line in the file, from 1. It is called only for bad rows, so it may be slow.
    `first_line_hint` is a possible reason for a bad row in line 1 of the file, for the message.
    """

    table: pa.Table
    file: str
    line_of: Callable[[int], int]
    first_line_hint: str = ""


# Consecutive rows of one source file, which may still have to be parsed: f(list) -> the Chunk of the good rows. The
# function appends the bad rows to the list. It is called once, in any thread.
Block = Callable[[list[BadRow]], Chunk]


@dataclasses.dataclass
class Encoded:
    """An encoded column of the data set, and its bad rows.

    `column` is a pa.Array, or for a single-valued text feature the `hashing.Unhashed` of its keys.
    `bad` is bool[n], whether each row is invalid, or None if all are valid; `expected` describes a valid value, and
    `cure` is advice for the message. `weights` are those of a bag's values, list<float32>. `lengths`, int[n], are the
    numbers of values in each row's list before truncation to `max_length`. `odd` is a value that looks like several, as
    `[1, 2]`.
    """

    column: Any
    bad: np.ndarray | None = None
    expected: str = ""
    weights: pa.Array | None = None
    lengths: np.ndarray | None = None
    odd: str | None = None
    cure: str = ""
