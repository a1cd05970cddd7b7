"""Dense features: numbers."""

import dataclasses

from ctr_trainer.messages.errors import UserError

TRANSFORMS = ("none", "log1p", "standardize", "minmax")


@dataclasses.dataclass(frozen=True)
class DenseFeature:
    """A number.

    Attributes:
      name: unique in the spec.
      column: of the source data.
      transform: `none`, `log1p` (sign(x) * log1p(|x|)), `standardize` or `minmax` (by the training data's statistics).
      default: what a missing value is taken for, before the transform.
      clip: (lowest, highest): what is beyond is taken for the nearer of the two, before the transform and before the
        statistics that it needs; None for no limits.

    Raises:
      UserError: no such transform, or a `clip` that is no interval.
    """

    name: str
    column: str
    transform: str = "none"
    default: float = 0.0
    clip: tuple[float, float] | None = None

    def __post_init__(self):
        if self.transform not in TRANSFORMS:
            raise UserError(f"transform {self.transform!r} is not one of {', '.join(TRANSFORMS)}")
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] < self.clip[1]):
            raise UserError(f"clip {list(self.clip)} is not a lowest and a greater highest value, as [0, 100]")
