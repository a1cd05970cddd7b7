"""From logits to an EstimatorSpec."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from ctr_trainer.models.delayed_labels import Correction, correction
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.metrics.click_metrics import metric_name
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

    w_i is `features["weight"]`. While training, c_i is `positive_weight` for a positive example and 1 for others, or
    the weight of `params.delayed_labels`, see `models.delayed_labels`; otherwise it is 1.

    Args:
      features, labels, mode, params: arguments of the `model_fn`. Labels are float32[B], 0 or 1; a dict of them by name
        if there are several, of which the model predicts `params.label`; None when predicting.
      logits: z, float32[B, 1].
      extra_loss: scalar that training adds to the loss, or f(loss_of) -> scalar, where loss_of gives the loss above of
        other logits, float32[B, 1]; or None. Evaluation reports the loss without it.

    Returns:
      EstimatorSpec, with the predictions `logits` and `probabilities`, float32[B], named as by `multi_head` if the data
      has several labels.

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
    label = params.label if len(names) > 1 else ""
    return _spec(features, labels, mode, params, {label: logits}, extra_loss, late=late)


def multi_head(
    features: Mapping[str, tf.Tensor],
    labels: Labels,
    mode: str,
    params: ModelParams,
    logits: Mapping[str, tf.Tensor],
    predictions: Mapping[str, tf.Tensor] | None = None,
) -> EstimatorSpec:
    """Makes the spec of a model of several labels; its loss is the weighted sum of the labels' losses.

        loss = sum_t weight_t * mean over the examples of the cross entropy of label t, as in `binary_head`

    weight_t is the weight of label t in the feature spec; without a spec it is 1.

    Args:
      features, labels, mode, params: see `binary_head`.
      logits: dict of label name -> float32[B, 1]. A label that is not in it is not trained.
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
    return _spec(features, labels, mode, params, logits, predictions=predictions)


def _spec(
    features: Mapping[str, tf.Tensor],
    labels: Labels,
    mode: str,
    params: ModelParams,
    logits: Mapping[str, tf.Tensor],
    extra_loss: tf.Tensor | None = None,
    predictions: Mapping[str, tf.Tensor] | None = None,
    late: Correction | None = None,
) -> EstimatorSpec:
    """Makes the spec of logits by label, of which "" is the only one that the data has; `late` corrects its loss."""
    if "" not in logits and params.negative_sampling not in (None, 1):
        raise UserError(
            f"negative_sampling={params.negative_sampling:g} is for data of one label: with several, a negative of "
            "one may be a positive of another, and no one factor calibrates their predictions"
        )
    logits = {name: calibrated(tf.squeeze(tensor, 1), mode, params) for name, tensor in logits.items()}
    predictions = dict(predictions or {})
    for name, tensor in logits.items():
        predictions |= {metric_name("logits", name): tensor, metric_name("probabilities", name): tf.sigmoid(tensor)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    weights = {label.name: label.weight for label in features.spec.labels} if hasattr(features, "spec") else {}
    weight, positive_weight, importance = features["weight"], _positive_weight(mode, params), late and late.importance
    losses = []
    for name, tensor in logits.items():
        own = _label(labels, name)
        loss = cross_entropy(own, tensor, weight, positive_weight, importance)
        losses.append(weights.get(name, 1.0) * loss if name else loss)
    loss = losses[0] if len(losses) == 1 else tf.add_n(losses)
    if mode != ModeKeys.TRAIN:
        return EstimatorSpec(mode, predictions, loss)
    # The label's weight is of the whole loss. Only models of one label have such terms.
    factor = 1.0 if "" in logits else weights.get(next(iter(logits)), 1.0)
    trained = loss if extra_loss is None else loss + factor * extra_loss
    if late is not None and late.lateness_loss is not None:
        trained += factor * late.lateness_loss
    if params.train_op_fn is None:
        raise UserError("params without train_op_fn cannot be trained: give train_op_fn=ctr_trainer.TrainOp()")
    train_op = params.train_op_fn(trained, features)
    return EstimatorSpec(mode, predictions, loss, train_op, training_hooks=[late.hook] if late else ())


def cross_entropy(
    labels: tf.Tensor,
    logits: tf.Tensor,
    weight: tf.Tensor,
    positive_weight: float = 1.0,
    importance: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes the mean of the examples' cross entropy, weighted by `weight`; 0 if no example has a weight.

    `labels` are 0 or 1. `positive_weight` is a factor on the cross entropy of a positive example, and `importance` on
    that of each example, by which the mean does not divide; None for 1. All are float32[B].
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
    label, weight = _label(labels, params.label), features["weight"]
    positive_weight, importance = _positive_weight(ModeKeys.TRAIN, params), late and late.importance
    return lambda logits: cross_entropy(label, tf.squeeze(logits, 1), weight, positive_weight, importance)


def _label(labels: Labels, name: str) -> tf.Tensor:
    return labels[name or next(iter(labels))] if isinstance(labels, dict) else labels


def _positive_weight(mode: str, params: ModelParams) -> float:
    if mode != ModeKeys.TRAIN:
        return 1.0
    if isinstance(params.positive_weight, str):
        raise UserError(
            "positive_weight=balanced: only the command `train` counts the examples; in Python give the number, "
            "positive_weight=balanced_weight(data)"
        )
    return params.positive_weight


def calibrated(logits: tf.Tensor, mode: str, params: ModelParams) -> tf.Tensor:
    """Corrects the logits of a model that trains on the share w of the negative examples only.

        q = p / (p + (1 - p) / w), which is sigmoid(logit(p) + log(w))

    p is the probability in the sampled data, q that in all data. Training uses p, as its examples are sampled.
    Evaluation, predictions and exports use q.

    `logits` are float32[B], of p, and w is `params.negative_sampling`.

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 6.3.
    """
    share = params.negative_sampling
    return logits if mode == ModeKeys.TRAIN or share in (None, 1) else logits + math.log(share)
