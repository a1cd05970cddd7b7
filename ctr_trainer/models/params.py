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
    """

    train_op_fn: Callable | None = None
    hidden_units: tuple[int, ...] = (256, 128, 64)
    dropout: float = 0.0

    def __post_init__(self):
        if not self.hidden_units or min(self.hidden_units) < 1:
            given = ",".join(map(str, self.hidden_units))
            raise UserError(f"--hidden_units={given}: expected one width or more, each at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout={self.dropout}: must be at least 0 and below 1")
