"""How long the lists of a bag or sequence are."""

import dataclasses

_FEW = 20  # lists, of which it says nothing that each has one value


@dataclasses.dataclass
class Lengths:
    """The lengths of one feature's lists, before the cut at `max_length`.

    Attributes:
      max_length: the feature's; 0 for none.
      rows: counted; `empty` of them have no value, `single` one, `cut` more than `max_length`.
      values: of all rows together.
      largest: values of the longest list.
    """

    max_length: int
    rows: int = 0
    empty: int = 0
    single: int = 0
    cut: int = 0
    values: int = 0
    largest: int = 0

    def add(self, lengths):
        """Adds int[n], the values of each row."""
        self.rows += len(lengths)
        self.empty += int((lengths == 0).sum())
        self.single += int((lengths == 1).sum())
        self.cut += int((lengths > self.max_length).sum()) if self.max_length else 0
        self.values += int(lengths.sum())
        self.largest = max(self.largest, int(lengths.max(initial=0)))

    @property
    def all_single(self):
        """Whether no list has a second value, and there are enough to tell."""
        return self.single >= _FEW and self.single == self.rows - self.empty

    def to_dict(self):
        """-> JSON-able figures: mean and largest length, shares of the rows that are empty and that are cut."""
        rows = max(self.rows, 1)
        return dict(mean=self.values / rows, largest=self.largest, empty=self.empty / rows, cut=self.cut / rows)
