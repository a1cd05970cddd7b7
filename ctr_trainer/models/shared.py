"""Parts that several models share: the deep network, histories, losses of averaged streams, and labels of tasks."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.ranked import Columns
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.head import Labels, LossOf, cross_entropy, label_names
from ctr_trainer.models.layers.dropout import dropout
from ctr_trainer.models.layers.experts import towers
from ctr_trainer.models.layers.mlp import mlp
from ctr_trainer.models.params import HistoryParams, ModelParams, SequenceParams
from ctr_trainer.system.messages.errors import UserError


def tower(
    inputs: Columns | Sequence[Columns],
    mode: str,
    params: ModelParams,
    hidden_units: Sequence[int] | None = None,
    name: str = "mlp",
) -> tf.Tensor:
    """Makes a `layers.mlp.mlp` with the dropout, activation and normalization that a model's params specify.

    Args:
      inputs: float32[B, n_i], or a list of such tensors, which represents their concatenation.
      mode: one of `ModeKeys`.
      params: `ModelParams`.
      hidden_units: widths of the layers; None for `params.hidden_units`.
      name: name of the variable scope.

    Returns:
      float32[B, units of the last layer].
    """
    return mlp(
        inputs,
        hidden_units or params.hidden_units,
        params.dropout,
        training=mode == ModeKeys.TRAIN,
        activation=params.activation,
        batch_norm=params.batch_norm,
        momentum=params.batch_norm_momentum or None,
        epsilon=params.batch_norm_epsilon,
        name=name,
    )


def dropped(inputs: tf.Tensor, mode: str, params: ModelParams) -> tf.Tensor:
    """Applies dropout with the rate `params.dropout` while training; otherwise returns the inputs unchanged."""
    return dropout(inputs, params.dropout * (mode == ModeKeys.TRAIN))


def self_distillation(
    features: Mapping[str, tf.Tensor], mode: str, logits: tf.Tensor, streams: Sequence[tf.Tensor]
) -> tf.Tensor | None:
    """Computes `sum_k cross entropy(p, sigmoid(z_k))`, the distance of the streams from the model's prediction p.

    Args:
      features: the features of the `model_fn`, of which `weight`, float32[B], is read.
      mode: one of `ModeKeys`.
      logits: the logits of p, float32[B, 1]; they get no gradient.
      streams: list of z_k, float32[B, 1].

    Returns:
      scalar, for `binary_head`'s `extra_loss`; None if `mode` is not TRAIN.

    Source: Zhu et al., FINAL: Factorized Interaction Layer for CTR Prediction, SIGIR 2023, as in FuxiCTR.
    """
    if mode != ModeKeys.TRAIN:
        return None
    target = tf.stop_gradient(tf.sigmoid(tf.squeeze(logits, 1)))
    return tf.add_n([cross_entropy(target, tf.squeeze(z, 1), features["weight"]) for z in streams])


def tri_bce(logits: tf.Tensor, streams: Sequence[tf.Tensor]) -> Callable[[LossOf], tf.Tensor]:
    """Makes the loss `sum_k w_k loss(z_k)` with `w_k = max(0, loss(z_k) - loss(z))`.

    A stream with a larger loss than the model's is thereby also trained on its own.

    Args:
      logits: z, float32[B, 1], the model's logits.
      streams: list of z_k, float32[B, 1].

    Returns:
      f(loss_of) -> scalar, for `binary_head`'s `extra_loss`.

    Caveat: gradients also flow through the weights w_k, as in the authors' code.

    Source: Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, arXiv
    2407.13349, 2024: the Tri-BCE loss.
    """

    def extra(loss_of: LossOf) -> tf.Tensor:
        whole, parts = loss_of(logits), [loss_of(z) for z in streams]
        return tf.add_n([part * tf.nn.relu(part - whole) for part in parts])

    return extra


def mean_of_losses(logits: tf.Tensor, streams: Sequence[tf.Tensor]) -> Callable[[LossOf], tf.Tensor]:
    """Makes the loss `mean_k loss(z_k) - loss(z)`. Added to `loss(z)`, it gives the mean of the streams' losses.

    Args:
      logits: z, float32[B, 1], the model's logits.
      streams: list of z_k, float32[B, 1].

    Returns:
      f(loss_of) -> scalar, for `binary_head`'s `extra_loss`.
    """
    return lambda loss_of: tf.add_n([loss_of(z) for z in streams]) / len(streams) - loss_of(logits)


def logit_of_mean(streams: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes the logit of `mean_k sigmoid(z_k)` for logits of the same shape, without rounding to 0 or 1."""
    positive = tf.reduce_logsumexp(tf.stack([tf.math.log_sigmoid(z) for z in streams]), 0)
    return positive - tf.reduce_logsumexp(tf.stack([tf.math.log_sigmoid(-z) for z in streams]), 0)


@dataclasses.dataclass(frozen=True)
class TaskParams(ModelParams):
    """The params that all multi-task models have.

    Attributes:
      tower_units: widths of the hidden layers of each task's tower; with none, the tower is a logit alone.
    """

    several_labels = True

    tower_units: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(units < 1 for units in self.tower_units):
            raise self.wrong("tower_units", "each width must be at least 1")


def task_names(features: Mapping[str, tf.Tensor], labels: Labels, model: str) -> list[str]:
    """Returns the names of the labels, in the order of the feature spec.

    Args:
      features, labels: the arguments of a `model_fn`.
      model: name of the model, for the error message.

    Raises:
      UserError: the data has only one label.
    """
    names = label_names(features, labels)
    if len(names) < 2:
        raise UserError(
            f"model {model} predicts several labels and the data has one: give the feature spec a [[label]] for each"
        )
    return names


def task_logits(
    inputs: Mapping[str, Columns | Sequence[Columns]], mode: str, params: TaskParams
) -> dict[str, tf.Tensor]:
    """Makes a tower for each task; see `layers.experts.towers`.

    Args:
      inputs: see `layers.experts.towers`.
      mode: one of `ModeKeys`.
      params: `TaskParams`.

    Returns:
      dict of task name -> logits, float32[B, 1].
    """
    biases = {name: params.base_logit(name) for name in inputs}
    if not params.tower_units:
        return towers(inputs, biases=biases)
    network = functools.partial(tower, mode=mode, params=params, hidden_units=params.tower_units)
    return towers(inputs, network, biases)


@dataclasses.dataclass(frozen=True)
class ReadSequence:
    """The tensors of one sequence feature. A tensor is created when a model first reads it.

    Attributes:
      feature: the `SparseFeature`.
      features: the features of the `model_fn`.
    """

    feature: SparseFeature
    features: Features

    @property
    def name(self) -> str:
        """The name of the feature."""
        return self.feature.name

    @property
    def values(self) -> tf.Tensor:
        """float32[B, L, dim], the vectors of the behaviours, the oldest first."""
        return self.features[f"sequence/{self.name}"]

    @property
    def mask(self) -> tf.Tensor:
        """float32[B, L], 1 for a behaviour and 0 for the padding at the end."""
        return self.features[f"sequence_mask/{self.name}"]

    @property
    def behaviours(self) -> Behaviours | None:
        """The `Behaviours`, to use instead of `values` and `mask`; None in an exported graph."""
        return self.features.behaviours(self.name) if isinstance(self.features, Features) else None

    def newest_first(self) -> tf.Tensor:
        """Returns float32[B, L, dim], the vectors of the behaviours, the newest first. Padding remains at the end."""
        return tf.reverse_sequence(self.values, tf.cast(tf.reduce_sum(self.mask, 1), tf.int32), 1)


@dataclasses.dataclass(frozen=True)
class History(ReadSequence):
    """A sequence and the target with which it is compared.

    Attributes:
      target: float32[B, dim], the vector of the target.
    """

    target: tf.Tensor


def read_sequences(features: Features, params: SequenceParams, model: str) -> list[ReadSequence]:
    """Reads the sequences that a model's params select.

    Args:
      features: `features.tensors.Features`.
      params: `SequenceParams`.
      model: name of the model, for error messages.

    Returns:
      list of `ReadSequence`.

    Raises:
      UserError: the spec has no sequence, or not the selected one; the message names it.
    """
    all_sequences = {feature.name: feature for feature in features.spec.sequences}
    if not all_sequences:
        raise UserError(
            f"model {model} reads histories, and feature spec {features.spec.name!r} has none: give a [[sparse]] "
            'feature combiner = "none" and a max_length'
        )
    for name in params.sequences:
        if name not in all_sequences:
            raise UserError(
                f"sequences={name}: feature spec {features.spec.name!r} has no such sequence; "
                f"it has {', '.join(all_sequences)}"
            )
    return [ReadSequence(all_sequences[name], features) for name in params.sequences or all_sequences]


def histories(features: Features, params: HistoryParams, model: str) -> list[History]:
    """Reads the sequences that a model's params select, each with its target.

    Raises:
      UserError: see `read_sequences`; or a sequence has no target, several possible targets, or a target with another
        dim.
    """
    found = []
    for read in read_sequences(features, params, model):
        target = _target(features.spec, params, model, read.feature)
        found.append(History(read.feature, features, features[f"feature/{target.name}"]))
    return found


def _target(spec: FeatureSpec, params: HistoryParams, model: str, sequence: SparseFeature) -> SparseFeature:
    single = {f.name: f for f in spec.sparse if f.combiner is None}
    if params.target:
        if params.target not in single:
            raise UserError(
                f"target={params.target}: feature spec {spec.name!r} has no single-valued feature of "
                f"that name; it has {', '.join(single)}"
            )
        target = single[params.target]
    else:
        sharing = [f for f in single.values() if f.slot == sequence.slot]
        if len(sharing) != 1:
            names = f"{len(sharing)} do ({', '.join(f.name for f in sharing)})" if sharing else "none does"
            raise UserError(
                f"model {model}: what is sequence {sequence.name!r} compared with? One single-valued feature should "
                f"share its slot {sequence.slot!r} and {names}; name it with the param target=NAME"
            )
        (target,) = sharing
    if target.dim != sequence.dim:
        raise UserError(
            f"model {model}: sequence {sequence.name!r} has dim {sequence.dim} and its target {target.name!r} dim "
            f"{target.dim}; they are compared, so give both one dim"
        )
    return target
