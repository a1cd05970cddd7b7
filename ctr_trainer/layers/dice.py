"""Activations whose negative side is learned."""

import tensorflow as tf

tf1 = tf.compat.v1


def prelu(inputs, name="prelu"):
    """`max(x, 0) + alpha * min(x, 0)`, alpha learned by channel, 0.25 at first.

    Args:
      inputs: float32[..., n].

    Source: He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.1.
    """
    alpha = tf1.get_variable(f"{name}/alpha", [inputs.shape[-1]], initializer=tf1.constant_initializer(0.25))
    return tf.maximum(inputs, 0.0) + alpha * tf.minimum(inputs, 0.0)


def dice(inputs, mask=None, training=False, momentum=0.99, epsilon=1e-6, name="dice"):
    """PReLU whose corner lies where the data is, and is as soft as the data is wide.

        f(x) = p x + (1 - p) alpha x,   p = sigmoid((x - E[x]) / sqrt(Var[x] + epsilon))

    alpha is learned by channel and is 0 at first. E and Var are those of the batch while training, and else their
    moving averages over the batches so far, corrected for their start at 0 as Adam's are.

    Args:
      inputs: float32[..., n].
      mask: float32[...], the weight of each vector in E and Var; None for 1. Padding must not move them.
      training: whether E and Var are the batch's; the step then updates their moving averages.
      momentum: of the moving averages, a step.

    Caveat: each worker has the statistics of its own batches; those of rank 0 are saved.

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 5.3.
    """
    channels = inputs.shape[-1]
    with tf1.variable_scope(name):
        alpha = tf1.get_variable("alpha", [channels], initializer=tf1.zeros_initializer())
        # Sums with their weight: E and Var are quotients, so nothing has to be corrected for the start.
        moments = tf1.get_variable("moments", [2, channels], initializer=tf1.zeros_initializer(), trainable=False)
        weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer(), trainable=False)
    if training:
        mean, variance, present = _moments(inputs, mask)
        share = (1.0 - momentum) * present  # a batch without any value changes nothing
        updates = [
            moments.assign_add(share * (tf.stack([mean, variance]) - moments)),
            weight.assign_add(share * (1.0 - weight)),
        ]
        with tf.control_dependencies(updates):
            inputs = tf.identity(inputs)
    else:
        mean, variance = tf.unstack(tf.math.divide_no_nan(moments, weight))
        variance += tf.cast(tf.equal(weight, 0.0), tf.float32)  # never trained: a unit variance
    return _gated(inputs, alpha, mean, tf.math.rsqrt(variance + epsilon))


def _moments(inputs, mask):
    """-> mean and variance float32[n] over all but the last axis; whether (1.0 or 0.0) there was anything."""
    axes = list(range(inputs.shape.ndims - 1))
    if mask is None:
        return *tf.nn.moments(inputs, axes), tf.constant(1.0)
    mask = mask[..., None]
    total = tf.reduce_sum(mask)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * mask, axes), total)
    variance = tf.math.divide_no_nan(tf.reduce_sum(tf.math.squared_difference(inputs, mean) * mask, axes), total)
    return mean, variance, tf.cast(total > 0, tf.float32)


def _gated(inputs, alpha, mean, scale):
    gate = tf.sigmoid((inputs - mean) * scale)
    return inputs * (alpha + (1.0 - alpha) * gate)
