"""The losses of models that average several streams."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.models.head import LossOf, cross_entropy


def self_distillation(
    features: Mapping[str, tf.Tensor], mode: str, logits: tf.Tensor, streams: Sequence[tf.Tensor]
) -> tf.Tensor | None:
    """Computes `sum_k cross entropy(p, sigmoid(z_k))`, the streams' distance from the model's prediction p.

    Args:
      features: the features of the `model_fn`; `weight` float32[B] is read.
      mode: one of `ModeKeys`.
      logits: the logits of p, float32[B, 1]; they get no gradient.
      streams: list of z_k, float32[B, 1].

    Returns:
      scalar, for `binary_head`'s `extra_loss`; None unless training.

    Source: Zhu et al., FINAL: Factorized Interaction Layer for CTR Prediction, SIGIR 2023, as in FuxiCTR.
    """
    if mode != ModeKeys.TRAIN:
        return None
    target = tf.stop_gradient(tf.sigmoid(tf.squeeze(logits, 1)))
    return tf.add_n([cross_entropy(target, tf.squeeze(z, 1), features["weight"]) for z in streams])


def tri_bce(logits: tf.Tensor, streams: Sequence[tf.Tensor]) -> Callable[[LossOf], tf.Tensor]:
    """Makes `sum_k w_k loss(z_k)`, with `w_k = max(0, loss(z_k) - loss(z))`: a stream that lags learns on its own.

    Args:
      logits: z, float32[B, 1], the model's logits.
      streams: list of z_k, float32[B, 1].

    Returns:
      f(loss_of) -> scalar, for `binary_head`'s `extra_loss`.

    Caveat: the weights have gradients, as in the authors' code.

    Source: Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, arXiv
    2407.13349, 2024: the Tri-BCE loss.
    """

    def extra(loss_of: LossOf) -> tf.Tensor:
        whole, parts = loss_of(logits), [loss_of(z) for z in streams]
        return tf.add_n([part * tf.nn.relu(part - whole) for part in parts])

    return extra


def mean_of_losses(logits: tf.Tensor, streams: Sequence[tf.Tensor]) -> Callable[[LossOf], tf.Tensor]:
    """Makes `mean_k loss(z_k) - loss(z)`, with which the training loss is the mean of the streams' own losses.

    Args:
      logits: z, float32[B, 1], the model's logits.
      streams: list of z_k, float32[B, 1].

    Returns:
      f(loss_of) -> scalar, for `binary_head`'s `extra_loss`.
    """
    return lambda loss_of: tf.add_n([loss_of(z) for z in streams]) / len(streams) - loss_of(logits)


def logit_of_mean(streams: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes the logit of `mean_k sigmoid(z_k)` for logits of one shape, without rounding to 0 or 1."""
    positive = tf.reduce_logsumexp(tf.stack([tf.math.log_sigmoid(z) for z in streams]), 0)
    return positive - tf.reduce_logsumexp(tf.stack([tf.math.log_sigmoid(-z) for z in streams]), 0)
