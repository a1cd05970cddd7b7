"""A network of its own for each task."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.layers.mlp import dense

tf1 = tf.compat.v1


def towers(
    inputs: Mapping[str, Columns | Sequence[Columns]],
    network: Callable[..., tf.Tensor] | None = None,
    biases: Mapping[str, float] | None = None,
) -> dict[str, tf.Tensor]:
    """Makes a network and a logit for each task.

    Args:
      inputs: dict of task name -> a float32[B, n_i], or a list of them that stands for their concatenation.
      network: f(inputs) -> float32[B, n] with variables of its own; None for a logit straight from the inputs.
      biases: dict of task name -> the number that the bias of its logit starts at; 0 for others.

    Returns:
      dict of task name -> logits, float32[B, 1].

    Advice: small ones of one hidden layer; what tasks share belongs below them.

    Example:
      >>> logits = towers({"click": tf.ones([2, 8]), "buy": tf.ones([2, 8])})
      >>> logits["buy"].shape
      TensorShape([2, 1])
    """
    logits = {}
    for index, (name, x) in enumerate(inputs.items()):
        # The scope has a number: a task's name may have characters that a scope's name must not have.
        with tf1.variable_scope(f"tower_{index}"):
            logits[name] = dense(network(x) if network else x, 1, "logits", bias=(biases or {}).get(name, 0.0))
    return logits
