"""Labels: what is predicted."""

import dataclasses

from ctr_trainer.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class Label:
    """A 0/1 target: `value == positive`, or `number >= threshold`, or, without either, the column's own 0 and 1.

    Attributes:
      column: column of the source data.
      positive: value of the column that makes an example positive; excludes `threshold`.
      threshold: least number that makes an example positive; excludes `positive`.
      name: name of the label, unique among the labels; by default the column's name.
      weight: weight of this label's loss in the sum of several labels' losses.

    Raises:
      UserError: both `positive` and `threshold` are given, or the weight is negative.
    """

    column: str
    positive: str | None = None
    threshold: float | None = None
    name: str | None = None
    weight: float = 1.0

    def __post_init__(self):
        if self.positive is not None and self.threshold is not None:
            raise UserError("label: give 'positive' or 'threshold', not both")
        if not 0 <= self.weight < float("inf"):
            raise UserError(f"label: weight {self.weight:g} is not a finite number of at least 0")
        if self.name is None:
            object.__setattr__(self, "name", self.column)
