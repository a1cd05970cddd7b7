"""The limit on the number of rows that cannot be used."""

import dataclasses
import logging
import threading

from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class BadRows:
    """Logs every row that is left out, and stops the conversion at the first bad row beyond the budget.

    Several threads may use it. Once the budget is spent, each of them gets the same error.

    Attributes:
      budget: number of rows that may be left out.
      count: number of rows that were left out so far.
      unit: what the number of a row counts: `line` for lines of a text file, or `row`.
    """

    budget: int = 0
    count: int = 0
    unit: str = "line"
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)
    _error: UserError | None = None

    def add(self, file, line, column, value, expected):
        """Counts and logs one bad row.

        Args:
          file: path of the source file.
          line: line or number of the row in the file, from 1; None if unknown.
          column: name of the column; None if the row as a whole is wrong.
          value: value that is there.
          expected: description of what should be there, as `a finite number`.

        Raises:
          UserError: the budget is spent.
        """
        at = f"{file}, {self.unit} {line}" + (f", column {column!r}" if column else "")
        message = f"{at}: {value!r} is not {expected}"
        with self._lock:
            if self._error is None and self.count == self.budget:
                already = f" ({self.count} bad rows before it were left out)" if self.count else ""
                self._error = UserError(
                    f"{message}{already}. Mend the row, or let the conversion leave out more bad rows with "
                    f"--max_bad_rows (now {self.budget})"
                )
            if self._error is not None:
                raise self._error
            self.count += 1
            _log.warning("bad row %d of at most %d, left out: %s", self.count, self.budget, message)


class TooManyBadRows(Exception):
    """The end of a search for bad rows that has found more than the whole input may have."""


class FoundBadRows:
    """Takes bad rows in place of `BadRows`, to hand them on later in the order of the input.

    Threads and tasks that look at different blocks each fill one of their own. So the rows that are left out, and the
    row that ends a conversion, do not depend on which thread was first.

    Args:
      budget: number of rows that the whole input may leave out.
    """

    def __init__(self, budget):
        self.budget, self.rows = budget, []

    def add(self, *row):
        """Keeps the arguments of `BadRows.add`.

        Raises:
          TooManyBadRows: there are more rows than the budget, so handing them on will raise.
        """
        self.rows.append(row)
        if len(self.rows) > self.budget:
            raise TooManyBadRows

    def taken(self):
        """-> the rows so far, which are no longer kept."""
        rows, self.rows = self.rows, []
        return rows
