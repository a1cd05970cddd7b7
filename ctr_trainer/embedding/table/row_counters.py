"""How many rows of a table came and went."""

NAMES = ("created", "restored", "admitted", "evicted", "refused")


def _counter(name):
    place = NAMES.index(name)

    def read(self):
        return int(self._numbers[place])

    def write(self, value):
        self._numbers[place] = value

    return property(read, write)


class RowCounters:
    """Counts since the start, of all processes that share the table.

    Args:
      memory: where the counts lie, see `Table`.

    Attributes:
      created: rows created, without those of a snapshot.
      restored: rows taken from a snapshot.
      admitted: keys that the counting filter let in.
      evicted: rows evicted.
      refused: how often a key was asked for and got no row.
    """

    created, restored, admitted, evicted, refused = map(_counter, NAMES)

    def __init__(self, memory):
        self._numbers = memory.counts("row_counters", len(NAMES))

    def to_dict(self):
        """-> dict of the counts by name."""
        return dict(zip(NAMES, self._numbers.tolist(), strict=True))
