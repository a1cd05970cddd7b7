"""Dense features: numbers."""

import dataclasses

from ctr_trainer.messages.errors import UserError

TRANSFORMS = ("none", "log1p", "standardize", "minmax")


@dataclasses.dataclass(frozen=True)
class DenseFeature:
    """A feature that is a number.

    Attributes:
      name: name of the feature, unique in the spec.
      column: column of the source data.
      transform: `none`, `log1p` (sign(x) * log1p(|x|)), `standardize` or `minmax` (by the training data's statistics).
      default: number that replaces a missing value, before the transform.
      clip: (lowest, highest). A number outside is replaced by the nearer of the two, before the transform and before
        the transform's statistics are computed. None for no limits.

    Raises:
      UserError: the transform is unknown, or `clip` is no interval.
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
