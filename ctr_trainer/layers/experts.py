"""Networks side by side, and gates that mix what they say."""

import tensorflow as tf

from ctr_trainer.layers.mlp import dense, mlp

tf1 = tf.compat.v1


def experts(inputs, count, hidden_units, dropout=0.0, training=False, name="experts"):
    """`count` networks of one form over the same inputs.

    Args:
      inputs: a float32[B, n_i], or a list of them that stands for their concatenation.
      hidden_units, dropout, training: of each, as for `mlp`.

    Returns:
      list of float32[B, hidden_units[-1]].
    """
    with tf1.variable_scope(name):
        return [mlp(inputs, hidden_units, dropout, training, f"expert_{index}") for index in range(count)]


def mixture(selector, outputs, name="gate"):
    """`sum_e softmax(x W + b)_e f_e`.

    Args:
      selector: x, a float32[B, n_i] or a list of them.
      outputs: f, a list of float32[B, n].

    Returns:
      float32[B, n].

    Source: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018,
    section 4.2.
    """
    weights = tf.split(tf.nn.softmax(dense(selector, len(outputs), name)), len(outputs), 1)
    return tf.add_n([weight * output for weight, output in zip(weights, outputs, strict=True)])
