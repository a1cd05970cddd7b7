"""The loss of models that average several streams."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.models.head import cross_entropy


def self_distillation(
    features: Mapping[str, tf.Tensor], mode: str, logits: tf.Tensor, streams: Sequence[tf.Tensor]
) -> tf.Tensor | None:
    """Computes `sum_k cross entropy(p, sigmoid(z_k))`, the streams' distance from the model's prediction p.

    Args:
      features: the features of the `model_fn`; `weight` float32[B] is read.
      mode: of `ModeKeys`.
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
