"""Parts that several models share: the deep network, averaged streams, towers of tasks, and histories."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.ranked import Columns
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.head import Labels, cross_entropy, label_names
from ctr_trainer.models.layers.dropout import dropout
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import batch_norm
from ctr_trainer.models.params import HistoryParams, ModelParams, SequenceParams
from ctr_trainer.settings.setting import setting
from ctr_trainer.system.messages.errors import UserError


def tower(
    inputs: Columns | Sequence[Columns],
    mode: str,
    params: ModelParams,
    hidden_units: Sequence[int] | None = None,
    name: str = "mlp",
    layer: Callable[..., tf.Tensor] = dense,
) -> tf.Tensor:
    """Stacks layers with the normalization, activation and dropout that a model's params specify.

    `inputs` is float32[B, n_i] or a list of such tensors. The layers have the widths `hidden_units`, or those of the
    params if it is None; the result is as wide as the last. `layer` is f(inputs, units, name=) -> float32[B, units].
    """
    activate = getattr(tf.nn, params.activation)
    with tf.compat.v1.variable_scope(name):
        for index, units in enumerate(hidden_units or params.hidden_units):
            inputs = normed(layer(inputs, units, name=f"layer_{index}"), mode, params, f"batch_norm_{index}")
            inputs = dropped(activate(inputs), mode, params)
    return inputs


def dropped(inputs: tf.Tensor, mode: str, params: ModelParams) -> tf.Tensor:
    """Applies dropout with the rate `params.dropout` while training; otherwise returns the inputs unchanged."""
    return dropout(inputs, params.dropout * (mode == ModeKeys.TRAIN))


def normed(inputs: tf.Tensor, mode: str, params: ModelParams, name: str, copies: int = 1) -> tf.Tensor:
    """Applies `layers.normalization.batch_norm` as the params specify it; without `batch_norm`, returns the inputs."""
    if not params.batch_norm:
        return inputs
    momentum, epsilon = params.batch_norm_momentum or None, params.batch_norm_epsilon
    return batch_norm(inputs, mode == ModeKeys.TRAIN, momentum, epsilon, name, copies)


def self_distillation(
    features: Mapping[str, tf.Tensor], mode: str, logits: tf.Tensor, streams: Sequence[tf.Tensor]
) -> tf.Tensor | None:
    """Computes `sum_k cross entropy(p, sigmoid(z_k))`, the distance of the streams from the model's prediction p.

    `logits` are those of p, float32[B, 1]; they get no gradient. `streams` are the z_k. The result is for
    `binary_head`'s `extra_loss`; it is None if `mode` is not TRAIN.

    Source: Zhu et al., FINAL: Factorized Interaction Layer for CTR Prediction, SIGIR 2023, as in FuxiCTR.
    """
    if mode != ModeKeys.TRAIN:
        return None
    target = tf.stop_gradient(tf.sigmoid(tf.squeeze(logits, 1)))
    return tf.add_n([cross_entropy(target, tf.squeeze(z, 1), features["weight"]) for z in streams])


def logit_of_mean(streams: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes the logit of `mean_k sigmoid(z_k)` for logits of the same shape, without rounding to 0 or 1."""
    positive = tf.reduce_logsumexp(tf.stack([tf.math.log_sigmoid(z) for z in streams]), 0)
    return positive - tf.reduce_logsumexp(tf.stack([tf.math.log_sigmoid(-z) for z in streams]), 0)


@dataclasses.dataclass(frozen=True)
class TaskParams(ModelParams):
    """The params that all multi-task models have."""

    several_labels = True

    tower_units: tuple[int, ...] = setting(
        (64,), "widths of the hidden layers of each task's tower; with none, the tower is a logit alone", minimum=1
    )


def task_names(features: Mapping[str, tf.Tensor], labels: Labels, model: str) -> list[str]:
    """Returns the names of the labels, in the order of the feature spec.

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
    """Makes a tower for each task, and returns its logits, float32[B, 1], by the task's name.

    `inputs` are, by the task's name, float32[B, n_i] or a list of such tensors.
    """
    logits = {}
    for index, (name, x) in enumerate(inputs.items()):
        # Scopes are numbered, because the name of a task may have characters that a scope name must not have.
        with tf.compat.v1.variable_scope(f"tower_{index}"):
            hidden = tower(x, mode, params, params.tower_units) if params.tower_units else x
            logits[name] = dense(hidden, 1, "logits", bias=params.base_logit(name))
    return logits


@dataclasses.dataclass(frozen=True)
class ReadSequence:
    """The tensors of one sequence feature. A tensor is created when a model first reads it."""

    feature: SparseFeature
    features: Features

    @property
    def values(self) -> tf.Tensor:
        """float32[B, L, dim], the vectors of the behaviours, the oldest first."""
        return self.features[f"sequence/{self.feature.name}"]

    @property
    def mask(self) -> tf.Tensor:
        """float32[B, L], 1 for a behaviour and 0 for the padding at the end."""
        return self.features[f"sequence_mask/{self.feature.name}"]

    @property
    def behaviours(self) -> Behaviours | None:
        """The `Behaviours`, to use instead of `values` and `mask`; None in an exported graph."""
        return self.features.behaviours(self.feature.name) if isinstance(self.features, Features) else None

    def newest_first(self) -> tf.Tensor:
        """Returns float32[B, L, dim], the vectors of the behaviours, the newest first. Padding remains at the end."""
        return tf.reverse_sequence(self.values, tf.cast(tf.reduce_sum(self.mask, 1), tf.int32), 1)


@dataclasses.dataclass(frozen=True)
class History(ReadSequence):
    """A sequence and the vector of the target with which it is compared, float32[B, dim]."""

    target: tf.Tensor


def read_sequences(features: Features, params: SequenceParams, model: str) -> list[ReadSequence]:
    """Reads the sequences that a model's params select.

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
