"""Assigns each row to a part of the data set: `train`, `valid` or `test`."""

from __future__ import annotations

import dataclasses

import numpy as np

from ctr_trainer.system.messages.errors import UserError

_FORM = (
    "'none', 'random:0.8,0.1,0.1' or 'time:0.8,0.1,0.1:timestamp' (two fractions: train,test; three: train,valid,test)"
)


@dataclasses.dataclass(frozen=True)
class Split:
    """How to split a data set.

    Attributes:
      kind: `random` or `time`.
      fractions: share of each part; they add up to 1.
      column: column of the time; None for `random`.
    """

    kind: str
    fractions: tuple[float, ...]
    column: str | None = None

    @staticmethod
    def parse(text: str | None) -> Split | None:
        """Parses a text such as `"random:0.8,0.1,0.1"`; returns None, for no split, if it is `"none"`, `""` or None.

        Raises:
          UserError: the text has another form.
        """
        if text in (None, "", "none"):
            return None
        kind, _, rest = text.partition(":")
        fractions, _, column = rest.partition(":")
        try:
            shares = tuple(float(f) for f in fractions.split(","))
        except ValueError:
            shares = ()
        if kind not in ("random", "time") or len(shares) not in (2, 3) or bool(column) != (kind == "time"):
            raise UserError(f"split {text!r}: expected {_FORM}")
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise UserError(f"split {text!r}: the fractions must be positive and add up to 1, as in {_FORM}")
        return Split(kind, shares, column or None)

    @property
    def parts(self) -> tuple[str, ...]:
        return ("train", "test") if len(self.fractions) == 2 else ("train", "valid", "test")

    def assign(self, rows: int, seed: int = 0, times: np.ndarray | None = None) -> np.ndarray:
        """Returns uint8[rows], the index in `parts` of each row's part.

        A random split permutes the rows. A split by time sorts them stably. The rows are then divided at the positions
        int(rows * cumulative sum of the fractions).
        """
        if self.kind == "time":
            assert times is not None
            order = np.argsort(times, kind="stable")
        else:
            order = np.random.default_rng(seed).permutation(rows)
        part = np.empty(rows, np.uint8)
        cuts = [int(rows * round(c, 12)) for c in np.cumsum(self.fractions)[:-1]]
        for number, piece in enumerate(np.split(order, cuts)):
            part[piece] = number
        return part
