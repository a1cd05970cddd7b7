"""From logits to an EstimatorSpec."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from ctr_trainer.models.delayed_labels import Correction, correction
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.params import WAIT, ModelParams
from ctr_trainer.system.messages.errors import UserError

Labels: TypeAlias = tf.Tensor | dict[str, tf.Tensor] | None  # Of one label, of several, or, when predicting, of none.
LossOf: TypeAlias = Callable[[tf.Tensor], tf.Tensor]  # f(logits, float32[B, 1]) -> the cross entropy of the label.


def binary_head(
    features: Mapping[str, tf.Tensor],
    labels: Labels,
    mode: str,
    params: ModelParams,
    logits: tf.Tensor,
    extra_loss: tf.Tensor | Callable[[LossOf], tf.Tensor] | None = None,
) -> EstimatorSpec:
    """Makes the spec of a click model; its loss is the cross entropy averaged over the batch's examples.

        loss = sum_i w_i c_i * (log(1 + exp(z_i)) - y_i z_i) / sum_i w_i, and 0 for a batch of padding only

    While training, c_i is `positive_weight` for a positive example and 1 for others, or the weight of
    `params.delayed_labels`, see `models.delayed_labels`; otherwise it is 1.

    If the data has several labels, the model predicts one of them, `params.label`, and its predictions have the names
    that `multi_head` gives them.

    Args:
      features: the features of the `model_fn`; `weight` float32[B] is read, unless predicting.
      labels: float32[B], 0 or 1; a dict of them by name if there are several; None when predicting.
      mode: one of `ModeKeys`.
      params: `ModelParams`, whose `train_op_fn` makes the train_op.
      logits: z, float32[B, 1].
      extra_loss: scalar that training adds to the loss, or f(loss_of) -> scalar, where loss_of gives the loss above of
        other logits, float32[B, 1]; or None. Evaluation reports the loss without it.

    Returns:
      EstimatorSpec, with the predictions `logits` and `probabilities`, float32[B].

    Raises:
      UserError: there are several labels and `params.label` is none of them.
    """
    names = label_names(features, labels)
    if names and params.label not in names and (params.label or len(names) > 1):
        raise UserError(
            f"label={params.label}: this model predicts one label, which must be one of the data's: "
            f"{', '.join(names)}; several at a time are for the models shared_bottom, mmoe, ple and esmm"
        )
    late = correction(features, labels, mode, params, logits)
    if callable(extra_loss):
        extra_loss = extra_loss(_loss_of(features, labels, params, late)) if mode == ModeKeys.TRAIN else None
    if len(names) > 1:
        return _several(features, labels, mode, params, {params.label: logits}, extra_loss, late=late)
    logits = calibrated(tf.squeeze(logits, 1), mode, params)
    predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    loss = cross_entropy(labels, logits, features["weight"], _positive_weight(mode, params), late and late.importance)
    return _spec(features, mode, params, predictions, loss, extra_loss, late)


def multi_head(
    features: Mapping[str, tf.Tensor],
    labels: Labels,
    mode: str,
    params: ModelParams,
    logits: Mapping[str, tf.Tensor],
    extra_loss: tf.Tensor | None = None,
    predictions: Mapping[str, tf.Tensor] | None = None,
) -> EstimatorSpec:
    """Makes the spec of a model of several labels; its loss is the weighted sum of the labels' losses.

        loss = sum_t weight_t * mean over the examples of the cross entropy of label t, as in `binary_head`

    weight_t is the weight of label t in the feature spec.

    Args:
      features: the features of the `model_fn`. `weight` float32[B] is read, unless predicting, and the labels' weights
        are read from `features.spec`; without a spec they are 1.
      labels: dict of name -> float32[B], 0 or 1; None when predicting.
      mode: one of `ModeKeys`.
      params: `ModelParams`, whose `train_op_fn` makes the train_op.
      logits: dict of label name -> float32[B, 1]. A label that is not in it is not trained.
      extra_loss: see `binary_head`.
      predictions: dict of name -> float32[B], further predictions.

    Returns:
      EstimatorSpec, its predictions named `logits/<label>` and `probabilities/<label>`, float32[B].

    Raises:
      UserError: negative examples are sampled, or labels come late.
    """
    if params.delayed_labels != WAIT:
        raise UserError(
            f"delayed_labels={params.delayed_labels} is for models of one label, and this one predicts {len(logits)}: "
            f"{', '.join(logits)}"
        )
    return _several(features, labels, mode, params, logits, extra_loss, predictions)


def _several(
    features: Mapping[str, tf.Tensor],
    labels: Labels,
    mode: str,
    params: ModelParams,
    logits: Mapping[str, tf.Tensor],
    extra_loss: tf.Tensor | None = None,
    predictions: Mapping[str, tf.Tensor] | None = None,
    late: Correction | None = None,
) -> EstimatorSpec:
    """Makes the spec of `multi_head`; `late` corrects the loss of a model's only label."""
    if params.negative_sampling not in (None, 1):
        raise UserError(
            f"negative_sampling={params.negative_sampling:g} is for data of one label: with several, a negative of "
            "one may be a positive of another, and no one factor calibrates their predictions"
        )
    logits = {name: tf.squeeze(tensor, 1) for name, tensor in logits.items()}
    predictions = dict(predictions or {})
    for name, tensor in logits.items():
        predictions |= {f"logits/{name}": tensor, f"probabilities/{name}": tf.sigmoid(tensor)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    assert isinstance(labels, dict)
    weights = {label.name: label.weight for label in features.spec.labels} if hasattr(features, "spec") else {}
    weight, positive_weight, importance = features["weight"], _positive_weight(mode, params), late and late.importance
    losses = [
        weights.get(name, 1.0) * cross_entropy(labels[name], tensor, weight, positive_weight, importance)
        for name, tensor in logits.items()
    ]
    return _spec(features, mode, params, predictions, tf.add_n(losses), extra_loss, late)


def cross_entropy(
    labels: tf.Tensor,
    logits: tf.Tensor,
    weight: tf.Tensor,
    positive_weight: float = 1.0,
    importance: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes the weighted mean of the examples' cross entropy.

    Args:
      labels: float32[B], 0 or 1.
      logits: float32[B].
      weight: float32[B], the weight of each example in the mean.
      positive_weight: factor on the cross entropy of a positive example.
      importance: float32[B], factor on each example's cross entropy, which the mean does not divide by; None for 1.

    Returns:
      scalar; 0 if no example has a weight.
    """
    with tf.name_scope("loss"):
        if positive_weight == 1.0:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        else:
            losses = tf.nn.weighted_cross_entropy_with_logits(labels=labels, logits=logits, pos_weight=positive_weight)
        if importance is not None:
            losses *= importance
        return tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))


def label_names(features: Mapping[str, tf.Tensor], labels: Labels) -> list[str]:
    """Returns the labels' names; [] for the one label of a `tf.data.Dataset`, which has no name."""
    if hasattr(features, "spec"):
        return [label.name for label in features.spec.labels]
    return list(labels) if isinstance(labels, dict) else []


def _loss_of(features: Mapping[str, tf.Tensor], labels: Labels, params: ModelParams, late: Correction | None) -> LossOf:
    """Returns the training loss of a click model as a function of its logits."""
    label = labels[params.label or next(iter(labels))] if isinstance(labels, dict) else labels
    weight, positive_weight = features["weight"], _positive_weight(ModeKeys.TRAIN, params)
    importance = late and late.importance
    return lambda logits: cross_entropy(label, tf.squeeze(logits, 1), weight, positive_weight, importance)


def _positive_weight(mode: str, params: ModelParams) -> float:
    if mode != ModeKeys.TRAIN:
        return 1.0
    if isinstance(params.positive_weight, str):
        raise UserError(
            "positive_weight=balanced: only the command `train` counts the examples; in Python give the number, "
            "positive_weight=balanced_weight(data)"
        )
    return params.positive_weight


def _spec(
    features: Mapping[str, tf.Tensor],
    mode: str,
    params: ModelParams,
    predictions: dict[str, tf.Tensor],
    loss: tf.Tensor,
    extra_loss: tf.Tensor | None,
    late: Correction | None,
) -> EstimatorSpec:
    if mode != ModeKeys.TRAIN:
        return EstimatorSpec(mode, predictions, loss)
    trained = loss if extra_loss is None else loss + extra_loss
    if late is not None and late.lateness_loss is not None:
        trained += late.lateness_loss
    assert params.train_op_fn is not None
    train_op = params.train_op_fn(trained, features)
    return EstimatorSpec(mode, predictions, loss, train_op, training_hooks=[late.hook] if late else ())


def calibrated(logits: tf.Tensor, mode: str, params: ModelParams) -> tf.Tensor:
    """Corrects the logits of a model that trains on the share w of the negative examples only.

        q = p / (p + (1 - p) / w), which is sigmoid(logit(p) + log(w))

    p is the probability in the sampled data, q that in all data. Training uses p, as its examples are sampled.
    Evaluation, predictions and exports use q.

    Args:
      logits: float32[B], of p.
      mode: one of `ModeKeys`.
      params: `ModelParams`, whose `negative_sampling` is w.

    Returns:
      float32[B], the logits of p while training, else of q.

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 6.3.
    """
    share = params.negative_sampling
    return logits if mode == ModeKeys.TRAIN or share in (None, 1) else logits + math.log(share)
