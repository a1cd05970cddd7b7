"""A network of its own for each task."""

import tensorflow as tf

from ctr_trainer.layers.mlp import dense

tf1 = tf.compat.v1


def towers(inputs, network=None):
    """A network and a logit a task.

    Args:
      inputs: by task name: a float32[B, n_i], or a list of them that stands for their concatenation.
      network: f(inputs) -> float32[B, n] with variables of its own; None for a logit straight from the inputs.

    Returns:
      by task name: logits, float32[B, 1].
    """
    logits = {}
    for index, (name, x) in enumerate(inputs.items()):
        with tf1.variable_scope(f"tower_{index}"):  # by number: a task's name may hold what a scope's must not
            logits[name] = dense(network(x) if network else x, 1, "logits")
    return logits
