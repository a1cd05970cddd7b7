"""The budget of rows that cannot be used."""

import dataclasses
import logging
import threading

from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class BadRows:
    """Logs every row that is left out, and stops the conversion at the first one beyond the budget.

    Safe to use from several threads: once the budget is spent, each of them gets the same error.

    Attributes:
      budget: how many rows may be left out.
      count: how many were.
      unit: what a row's number counts: `line`s of a text file, or `row`s.
    """

    budget: int = 0
    count: int = 0
    unit: str = "line"
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)
    _error: UserError | None = None

    def add(self, file, line, column, value, expected):
        """Notes one row.

        Args:
          file: the source file.
          line: the row's line in it, or its number, from 1; None where unknown.
          column: the column's name, or None where the row as a whole is wrong.
          value: what stands there.
          expected: what should.

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
