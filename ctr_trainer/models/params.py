"""The hyperparameters of models."""

import dataclasses
import typing
from collections.abc import Callable

from ctr_trainer.messages.errors import UserError

Activation = typing.Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid"]


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """What a `model_fn` of this package gets as `params`.

    A model with hyperparameters of its own has a frozen dataclass `Params(ModelParams)` in its module. Its fields are
    set with `--model_params=name=value`; their types may be int, float, bool, str, a `typing.Literal` of strings,
    tuple[int, ...] and tuple[str, ...], and their texts under Attributes are the help. Checks go into a `__post_init__`
    that calls this one first.

    A model that was trained is not read with other params, as they make its graph; `may_change` names those that do
    not, for a model's own Params to add to.

    `several_labels` says whether it is of a model that predicts several.

    Attributes:
      train_op_fn: f(loss, features) -> train_op; `estimator.optimize.TrainOp`. Not needed to evaluate or predict.
      hidden_units: width of each hidden layer.
      dropout: share of activations dropped while training.
      batch_norm: whether the hidden layers' inputs to their activation are normalised over the batch.
      activation: of the hidden layers; the function of this name in `tf.nn`.
      label: the one that a model of one label predicts, where the data has several.
      positive_weight: what the loss of a positive example is multiplied by while training.
      negative_sampling: the share of the negative examples that training keeps; see `head.calibrated`. None for all,
        and, of a trained model, for the share that its checkpoint was trained with.
    """

    may_change: typing.ClassVar[tuple[str, ...]] = ("train_op_fn", "dropout", "positive_weight", "negative_sampling")
    several_labels: typing.ClassVar[bool] = False

    train_op_fn: Callable | None = None
    hidden_units: tuple[int, ...] = (256, 128, 64)
    dropout: float = 0.0
    batch_norm: bool = False
    activation: Activation = "relu"
    label: str = ""
    positive_weight: float = 1.0
    negative_sampling: float | None = None

    def __post_init__(self):
        self.require_widths("hidden_units")
        if not 0 <= self.dropout < 1:
            raise self.wrong("dropout", "must be at least 0 and below 1")
        if not self.positive_weight > 0:
            raise self.wrong("positive_weight", "must be above 0")
        if self.negative_sampling is not None and not 0 < self.negative_sampling <= 1:
            raise self.wrong("negative_sampling", "a share above 0, up to 1")
        for name, kind in typing.get_type_hints(type(self)).items():
            choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else None
            if choices and getattr(self, name) not in choices:
                raise self.wrong(name, f"choose one of {', '.join(choices)}")

    def require_at_least(self, minimum, *names):
        """Raises UserError where a named field is less than `minimum`."""
        for name in names:
            if not getattr(self, name) >= minimum:
                raise self.wrong(name, f"must be at least {minimum}")

    def require_widths(self, *names):
        """Raises UserError where a named field is no tuple of one width or more."""
        for name in names:
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise self.wrong(name, "expected one width or more, each at least 1")

    def wrong(self, name, problem):
        """-> the UserError that says so of a field's value, as the command line writes it."""
        return UserError(f"{self.as_flag(name, getattr(self, name))}: {problem}")

    @staticmethod
    def as_flag(name, value):
        """-> a field's setting as the command line writes it."""
        text = str(value).lower() if isinstance(value, bool) else value
        if isinstance(value, list | tuple):
            text = ("," if name in SHARED else ":").join(map(str, value))
        return f"--{name}={text}" if name in SHARED else f"--model_params={name}={text}"


SHARED = frozenset(field.name for field in dataclasses.fields(ModelParams))
