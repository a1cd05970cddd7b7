"""The hyperparameters that the models share."""

import dataclasses
from collections.abc import Callable

from ctr_trainer.errors import UserError


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """What a `model_fn` of this package gets as `params`.

    Attributes:
      train_op_fn: f(loss, features) -> train_op; `estimator.optimize.TrainOp`. Not needed to evaluate or predict.
      hidden_units: width of each hidden layer.
      dropout: share of activations dropped while training.
      batch_norm: whether the hidden layers' inputs to their activation are normalised over the batch.
      positive_weight: what the loss of a positive example is multiplied by while training.
      negative_sampling: the share of the negative examples that training kept; see `head.calibrated`.
    """

    train_op_fn: Callable | None = None
    hidden_units: tuple[int, ...] = (256, 128, 64)
    dropout: float = 0.0
    batch_norm: bool = False
    positive_weight: float = 1.0
    negative_sampling: float = 1.0

    def __post_init__(self):
        if not self.hidden_units or min(self.hidden_units) < 1:
            given = ",".join(map(str, self.hidden_units))
            raise UserError(f"--hidden_units={given}: expected one width or more, each at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout={self.dropout}: must be at least 0 and below 1")
        if not self.positive_weight > 0:
            raise UserError(f"--positive_weight={self.positive_weight:g}: must be above 0")
        if not 0 < self.negative_sampling <= 1:
            raise UserError(f"--negative_sampling={self.negative_sampling:g}: a share above 0, up to 1")
