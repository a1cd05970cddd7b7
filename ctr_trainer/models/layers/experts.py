"""Networks of experts, and gates that mix their outputs."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.models.layers.mlp import dense


def experts(
    inputs: Columns | Sequence[Columns], count: int, network: Callable[..., tf.Tensor], name: str = "experts"
) -> list[tf.Tensor]:
    """Creates `count` networks of the same form over the same inputs, float32[B, n_i] or a list of such tensors.

    `network` is f(inputs, name=) -> float32[B, n], an expert with variables of its own.
    """
    with tf.compat.v1.variable_scope(name):
        return [network(inputs, name=f"expert_{index}") for index in range(count)]


def mixture(selector: Columns | Sequence[Columns], outputs: Sequence[tf.Tensor], name: str = "gate") -> tf.Tensor:
    """Mixes the outputs f of experts, each float32[B, n], with a gate: `sum_e softmax(x W + b)_e f_e`.

    `selector` is x, float32[B, n_i] or a list of such tensors.

    Source: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018,
    section 4.2.
    """
    weights = tf.split(tf.nn.softmax(dense(selector, len(outputs), name)), len(outputs), 1)
    return tf.add_n([weight * output for weight, output in zip(weights, outputs, strict=True)])
