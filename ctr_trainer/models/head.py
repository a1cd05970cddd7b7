"""From logits to an EstimatorSpec."""

import math

import tensorflow as tf

from ctr_trainer.estimator_spec import EstimatorSpec, ModeKeys


def binary_head(features, labels, mode, params, logits):
    """The spec of a click model: cross entropy averaged over the batch's examples.

        loss = sum_i w_i c_i * (log(1 + exp(z_i)) - y_i z_i) / sum_i w_i, and 0 for a batch of padding only

    where c_i, while training, is `positive_weight` for a positive example and 1 for others.

    Args:
      features: of which `weight` is read, unless predicting.
      labels: float32[B], 0 or 1; None when predicting.
      mode: of `ModeKeys`.
      params: `ModelParams`, whose `train_op_fn` makes the train_op.
      logits: float32[B, 1].
    """
    logits = calibrated(tf.squeeze(logits, 1), mode, params)
    predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    positive_weight = params.positive_weight if mode == ModeKeys.TRAIN else 1.0
    if positive_weight == 1.0:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    else:
        losses = tf.nn.weighted_cross_entropy_with_logits(labels=labels, logits=logits, pos_weight=positive_weight)
    weight = features["weight"]
    loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))
    train_op = params.train_op_fn(loss, features) if mode == ModeKeys.TRAIN else None
    return EstimatorSpec(mode, predictions, loss, train_op)


def calibrated(logits, mode, params):
    """Logits whose sigmoid is the probability in the data, for a model that kept a share w of the negative examples.

        q = p / (p + (1 - p) / w), which is sigmoid(logit(p) + log(w))

    Training goes on with p, as its examples are sampled; evaluation, predictions and exports have q.

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 6.3.
    """
    if mode == ModeKeys.TRAIN or params.negative_sampling == 1:
        return logits
    return logits + math.log(params.negative_sampling)
