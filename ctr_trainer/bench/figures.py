"""The figures of several rounds as text."""

import dataclasses
import statistics

ONE_ROUND = "One round tells no spread: equal jobs differ, and small differences mean nothing; --rounds=3 shows it."


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure measured several times.

    Attributes:
      values: of each round.
    """

    values: tuple[float, ...]

    @property
    def median(self):
        return statistics.median(self.values)

    def to_dict(self):
        """-> `median`, `min`, `max` and the `values` by round, JSON-able."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": list(self.values)}

    def __format__(self, form):
        """-> the median, and the range behind it where there were several rounds: `98,400 (91,000-99,200)`."""
        median = format(self.median, form)
        if len(self.values) == 1:
            return median
        return f"{median} ({format(min(self.values), form)}-{format(max(self.values), form)})"


def figure(values):
    """-> the `Figure` of the values that are not None; None where there is none."""
    known = tuple(value for value in values if value is not None)
    return Figure(known) if known else None


def gains(before: Figure | None, rates: Figure) -> Figure | None:
    """Returns by how many percent the examples/s of a row are more than those of the row before it, in each round.

    Args:
      before: examples/s of the row before; None if there is none.
      rates: examples/s of the row.
    """
    if before is None:
        return None
    return figure(100 * (own / other - 1) for own, other in zip(rates.values, before.values, strict=True))


def cell(value, form=",.0f"):
    """-> a Figure, a number or a text for a table; `-` for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form)


def format_table(headings, rows):
    """-> lines of columns: texts, the first one left, the others right.

    Args:
      headings: a text a column.
      rows: a list of texts each, as many as there are headings.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for row in (headings, *rows):
        cells = (
            text.rjust(w) if place else text.ljust(w) for place, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines
