"""The hyperparameters of models."""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ctr_trainer.settings.by_flag import text_of
from ctr_trainer.settings.setting import Settings, declared, flag_of, setting
from ctr_trainer.system.messages.errors import UserError

# An outcome with a smaller share is rare. With 0.2% and 3% of positive examples, a bias that starts at their log odds
# is better; with 25%, it is not better on all data.
_RARE = 0.05
# How to handle labels that arrive later than their impressions; see `delayed_labels`.
WAIT, FAKE_NEGATIVE, ES_DFM = "wait", "fake_negative", "es_dfm"
_ACTIVATIONS = ("relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid")


@dataclasses.dataclass(frozen=True)
class ModelParams(Settings, title="Network and loss"):
    """The `params` of a `model_fn` of this package.

    A model with its own hyperparameters defines a frozen dataclass `Params(ModelParams)` in its module. Its fields are
    made by `setting`, which declares their help text and bounds, and are set with `--model_params=name=value`. Their
    types may be int, float, bool, str, tuple[int, ...] and tuple[str, ...].

    A trained model can be read only with the params that it was trained with, because they determine its graph. The
    params in `may_change` do not affect the graph; a model's own Params may add further ones.

    `several_labels` is True if the model predicts several labels.

    Attributes:
      train_op_fn: f(loss, features) -> train_op; `estimator.optimize.TrainOp`. Not needed to evaluate or predict.
      activation: name of a function in `tf.nn`.
      positive_weight: a number. The command line replaces `balanced` with `balanced_weight` of the training data.
      negative_sampling: see `head.calibrated`. None for all negative examples; for a trained model, None for the share
        that its checkpoint was trained with.
      label_means: dict of label name -> share of positive examples in the training data; used by `base_logit`.
    """

    may_change: typing.ClassVar[tuple[str, ...]] = (
        *("train_op_fn", "label_means", "dropout", "positive_weight", "negative_sampling", "delayed_labels"),
        "batch_norm_momentum",
    )
    several_labels: typing.ClassVar[bool] = False

    train_op_fn: Callable | None = None
    label_means: Mapping[str, float] = dataclasses.field(default_factory=dict, kw_only=True)
    hidden_units: tuple[int, ...] = setting(
        (256, 128, 64),
        "widths of the hidden layers, from the first to the last",
        "units",
        minimum=1,
        fewest=1,
        example=(256, 128),
    )
    dropout: float = setting(
        0.0,
        "share of the activations of the hidden layers that is set to 0 while training; 0 drops none",
        "share",
        minimum=0.0,
        below=1.0,
    )
    batch_norm: bool = setting(False, "batch normalization of the hidden layers, before their activation")
    batch_norm_momentum: float = setting(
        0.0,
        "share of the moving statistics of --batch_norm that a step keeps; with 0, they average over a tenth of "
        "an epoch, at least 10 and at most 100 steps",
        "share",
        minimum=0.0,
        below=1.0,
        flag=None,
    )
    batch_norm_epsilon: float = setting(
        1e-3, "number that --batch_norm adds to the variance before it divides by its root", above=0.0, flag=None
    )
    activation: str = setting("relu", "activation of the hidden layers", choices=_ACTIVATIONS)
    label: str = setting("", "label that a model of one label predicts; needed if the data has several", "name")
    positive_weight: float | str = setting(
        1.0,
        "factor that multiplies the loss of positive examples while training; balanced: the number of negative "
        "examples divided by the number of positive ones in the training data. The odds that the model predicts are "
        "then too high by that factor",
        choices=("balanced",),
        above=0.0,
    )
    negative_sampling: float | None = setting(
        None,
        "share of the negative examples to train on; all if not given. The others get weight 0 and no rows, so the "
        "number of steps stays the same; predictions are corrected for it",
        "share",
        above=0.0,
        maximum=1.0,
    )
    delayed_labels: str = setting(
        WAIT,
        "how to train on labels that arrive after their impressions. wait: the data has impressions and labels joined; "
        "fake_negative, es_dfm: impressions arrive as negatives, and late positives arrive again; weights correct for "
        "both",
        choices=(WAIT, FAKE_NEGATIVE, ES_DFM),
    )

    def base_logit(self, label: str = "", given: str = "") -> float:
        """Returns the initial value of a model's last bias: the logit of the share of positive examples.

            log(p / (1 - p)) + log(positive_weight) - log(negative_sampling)   if p < 0.05 or p > 0.95, else 0

        With this bias, a model initially predicts the share of rare clicks in its training data. From a bias of 0,
        which predicts one half, an optimizer with steps of limited size needs hundreds of steps to reach this share.
        Meanwhile, embeddings and hidden layers learn the bias. See docs/evaluation.md.

        Args:
          label: name of the label; "" for the only label that the model predicts.
          given: name of a label that `label` implies. p is then the share among the positive examples of `given`, where
            positive examples of either count `positive_weight` times among all examples.

        Returns:
          the logit; 0 if the share is unknown or not rare.

        Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, for the correction
        by the negative sampling rate; Lin et al., Focal Loss, ICCV 2017, section 3.3, for the prior as initial bias.
        """
        label = label or self.label or (next(iter(self.label_means)) if len(self.label_means) == 1 else "")
        mean, of_given = self.label_means.get(label, 0.0), self.label_means.get(given, 0.0) or 1.0 if given else 1.0
        if not 0 < min(mean / of_given, 1 - mean / of_given) < _RARE:
            return 0.0
        weight = 1.0 if isinstance(self.positive_weight, str) else self.positive_weight
        # A model multiplies this p by that of `given`, whose bias has the weight too.
        weighted, weighted_given = (weight * p / (1 + (weight - 1) * p) for p in (mean, of_given))
        share = weighted / weighted_given
        return math.log(share / (1 - share)) - math.log(self.negative_sampling or 1.0)

    def conflicts(self) -> Iterator[str]:
        if self.delayed_labels == WAIT:
            return
        if self.several_labels:
            yield "{delayed_labels}: is for models of one label, and this model predicts several"
        for name, usual in (("positive_weight", (1.0,)), ("negative_sampling", (None, 1.0))):
            if getattr(self, name) not in usual:
                yield f"{{delayed_labels}}: {{{name}}} would spoil its weights; leave one of them out"

    @classmethod
    def name_in_messages(cls, field: dataclasses.Field[Any]) -> str:
        return field.name if field.name in SHARED else f"model_params={field.name}"

    @staticmethod
    def as_flag(name: str, value: Any) -> str:
        """Returns the setting of a field in command-line syntax."""
        flag = name if name in SHARED else f"model_params={name}"
        return f"--{flag}={text_of(flag, value)}"


# The params of all models that are not given as `--model_params`: `train_op_fn`, `label_means`, and those with flags.
SHARED = frozenset(
    field.name
    for field in dataclasses.fields(ModelParams)
    if declared(field) is None or flag_of(ModelParams, field) is not None
)


@dataclasses.dataclass(frozen=True)
class SequenceParams(ModelParams):
    """The params that all sequence models have."""

    sequences: tuple[str, ...] = setting((), "sequence features to read; by default all")


@dataclasses.dataclass(frozen=True)
class HistoryParams(SequenceParams):
    """The params of all models that compare histories with a target."""

    target: str = setting(
        "", "single-valued feature to compare histories with; by default the one that shares a history's slot"
    )


def params_of_training(params: Any) -> Any:
    """Returns the params as checkpoints record them: with the share of negative examples that the training uses.

    Params of a class without `negative_sampling`, and of a model of several labels, are returned unchanged.
    """
    if not hasattr(params, "negative_sampling") or getattr(params, "several_labels", False):
        return params
    return params if params.negative_sampling is not None else dataclasses.replace(params, negative_sampling=1.0)


def params_as_trained(params: Any, checkpoint: Any) -> Any:
    """Returns the params of a model with the share of negative examples with which a checkpoint was trained.

    Params of a class without `negative_sampling` are returned unchanged.

    Raises:
      UserError: the params set a share that differs from the checkpoint's.
    """
    if checkpoint.negative_sampling is None or not hasattr(params, "negative_sampling"):
        return params
    if params.negative_sampling not in (None, checkpoint.negative_sampling):
        raise UserError(
            f"negative_sampling={params.negative_sampling:g}: {checkpoint.path} was trained with "
            f"negative_sampling={checkpoint.negative_sampling:g}, and its predictions are calibrated for that; leave "
            "the setting out"
        )
    return dataclasses.replace(params, negative_sampling=checkpoint.negative_sampling)
