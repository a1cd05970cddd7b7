"""Networks side by side, and gates that mix their outputs."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.layers.mlp import dense

tf1 = tf.compat.v1


def experts(
    inputs: Columns | Sequence[Columns], count: int, network: Callable[..., tf.Tensor], name: str = "experts"
) -> list[tf.Tensor]:
    """Makes `count` networks of one form over the same inputs.

    Args:
      inputs: a float32[B, n_i], or a list of them that stands for their concatenation.
      count: number of networks.
      network: f(inputs, name=) -> float32[B, n], an expert with variables of its own.
      name: name of the variable scope.

    Returns:
      list of float32[B, n].

    Advice: more experts than tasks, each narrower than a network alone would be.

    Example:
      >>> def network(inputs, name):
      ...     return dense(inputs, 4, name)
      >>> [expert.shape for expert in experts(tf.ones([2, 8]), 3, network)]
      [TensorShape([2, 4]), TensorShape([2, 4]), TensorShape([2, 4])]
    """
    with tf1.variable_scope(name):
        return [network(inputs, name=f"expert_{index}") for index in range(count)]


def mixture(selector: Columns | Sequence[Columns], outputs: Sequence[tf.Tensor], name: str = "gate") -> tf.Tensor:
    """Mixes the outputs of experts by a gate: `sum_e softmax(x W + b)_e f_e`.

    Args:
      selector: x, a float32[B, n_i], or a list of them that stands for their concatenation.
      outputs: f, a list of float32[B, n].
      name: name of the variable scope of the gate.

    Returns:
      float32[B, n].

    Advice: give each task a gate of its own, by its name; one gate for all tasks mixes them alike.

    Example:
      >>> mixture(tf.ones([2, 8]), [tf.ones([2, 4]), tf.zeros([2, 4])], name="gate_click").shape
      TensorShape([2, 4])

    Source: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018,
    section 4.2.
    """
    weights = tf.split(tf.nn.softmax(dense(selector, len(outputs), name)), len(outputs), 1)
    return tf.add_n([weight * output for weight, output in zip(weights, outputs, strict=True)])
