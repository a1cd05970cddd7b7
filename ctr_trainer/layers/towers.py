"""A network of its own for each task."""

import tensorflow as tf

from ctr_trainer.layers.mlp import dense, mlp

tf1 = tf.compat.v1


def towers(inputs, hidden_units, dropout=0.0, training=False):
    """An MLP and a logit a task.

    Args:
      inputs: by task name: a float32[B, n_i], or a list of them that stands for their concatenation.
      hidden_units, dropout, training: of each, as for `mlp`; no hidden units for a logit straight from the inputs.

    Returns:
      by task name: logits, float32[B, 1].
    """
    logits = {}
    for index, (name, x) in enumerate(inputs.items()):
        with tf1.variable_scope(f"tower_{index}"):  # by number: a task's name may hold what a scope's must not
            hidden = mlp(x, hidden_units, dropout, training) if hidden_units else x
            logits[name] = dense(hidden, 1, "logits")
    return logits
