"""From logits to an EstimatorSpec."""

import tensorflow as tf

from ctr_trainer.estimator_spec import EstimatorSpec, ModeKeys


def binary_head(features, labels, mode, params, logits):
    """The spec of a click model: cross entropy averaged over the batch's examples.

        loss = sum_i w_i * (log(1 + exp(z_i)) - y_i z_i) / sum_i w_i, and 0 for a batch of padding only

    Args:
      features: of which `weight` is read, unless predicting.
      labels: float32[B], 0 or 1; None when predicting.
      mode: of `ModeKeys`.
      params: `ModelParams`, whose `train_op_fn` makes the train_op.
      logits: float32[B, 1].
    """
    logits = tf.squeeze(logits, 1)
    predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    weight = features["weight"]
    loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))
    train_op = params.train_op_fn(loss, features) if mode == ModeKeys.TRAIN else None
    return EstimatorSpec(mode, predictions, loss, train_op)
