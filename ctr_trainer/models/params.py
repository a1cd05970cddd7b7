"""The hyperparameters of models."""

import dataclasses
import typing
from collections.abc import Callable

from ctr_trainer.settings.setting import SettingError, Settings, setting

Activation = typing.Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid"]


@dataclasses.dataclass(frozen=True)
class ModelParams(Settings, title="Network and loss"):
    """The `params` of a `model_fn` of this package.

    A model with hyperparameters of its own has a frozen dataclass `Params(ModelParams)` in its module. Its fields are
    set with `--model_params=name=value`. Their types may be int, float, bool, str, a `typing.Literal` of strings,
    tuple[int, ...] and tuple[str, ...]; their texts under Attributes are the help. Checks go into a `__post_init__`
    that calls this one first.

    A trained model is only read with the params that it was trained with, as they make its graph. `may_change` names
    the params that do not change the graph; a model's own Params may add to it.

    `several_labels` says whether the model predicts several labels.

    Attributes:
      train_op_fn: f(loss, features) -> train_op; `estimator.optimize.TrainOp`. Not needed to evaluate or predict.
      activation: the function of this name in `tf.nn`.
      positive_weight: `balanced` is of the command line, which counts the training data; see `balanced_weight`.
      negative_sampling: see `head.calibrated`. None for all, and, of a trained model, for the share that its checkpoint
        was trained with.
    """

    may_change: typing.ClassVar[tuple[str, ...]] = ("train_op_fn", "dropout", "positive_weight", "negative_sampling")
    several_labels: typing.ClassVar[bool] = False

    train_op_fn: Callable | None = None
    hidden_units: tuple[int, ...] = setting(
        (256, 128, 64), "widths of the hidden layers, comma separated", "units", minimum=1, example=(256, 128)
    )
    dropout: float = setting(0.0, "share of activations dropped while training", "share", minimum=0.0, below=1.0)
    batch_norm: bool = setting(False, "normalise the hidden layers' inputs to their activation over the batch")
    activation: str = setting("relu", "activation of the hidden layers", choices=typing.get_args(Activation))
    label: str = setting("", "label that a model of one label predicts, if the data has several", "name")
    positive_weight: float | str = setting(
        1.0,
        "factor on the loss of a positive example while training; balanced: negative over positive examples of the "
        "training data",
        choices=("balanced",),
        above=0.0,
    )
    negative_sampling: float | None = setting(
        None,
        "share of the negative examples to train on, all by default; kept with checkpoints, whose predictions are "
        "calibrated for it",
        "share",
        above=0.0,
        maximum=1.0,
    )

    def __post_init__(self):
        super().__post_init__()
        self.require_widths("hidden_units")
        for name, kind in typing.get_type_hints(type(self)).items():
            choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else None
            if choices and getattr(self, name) not in choices:
                raise self.wrong(name, f"choose one of {', '.join(choices)}")

    def require_at_least(self, minimum, *names):
        """Raises UserError if a named field is less than `minimum`."""
        for name in names:
            if not getattr(self, name) >= minimum:
                raise self.wrong(name, f"must be at least {minimum}")

    def require_widths(self, *names):
        """Raises UserError if a named field is not a tuple of one width or more, each at least 1."""
        for name in names:
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise self.wrong(name, "expected one width or more, each at least 1")

    def wrong(self, name, problem):
        """-> the SettingError that names a field, its value and the problem."""
        value = getattr(self, name)
        return SettingError(f"{name}={value}: {problem}", f"{self.as_flag(name, value)}: {problem}")

    @staticmethod
    def as_flag(name, value):
        """-> a field's setting as the command line writes it."""
        text = str(value).lower() if isinstance(value, bool) else value
        if isinstance(value, list | tuple):
            text = ("," if name in SHARED else ":").join(map(str, value))
        return f"--{name}={text}" if name in SHARED else f"--model_params={name}={text}"


# The params that all models have; each is a flag of its own, but for `train_op_fn`.
SHARED = frozenset(field.name for field in dataclasses.fields(ModelParams))
