"""The layer of FinalNet: a fully connected layer half of whose outputs are products."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.layers.mlp import dense


def factorized_interaction(
    inputs: Columns | Sequence[Columns], units: int, residual: str = "concat", name: str = "factorized"
) -> tf.Tensor:
    """Multiplies two linear maps of the input, so that each layer doubles the degree of the interactions.

        [a, c] = x W + b,   y = [a, a * c] for `concat`,   y = a + a * c for `sum`

    Args:
      inputs: x, a float32[B, n_i], or a list of them that stands for their concatenation.
      units: width of y; even for `concat`. a and c have `units / 2` columns for `concat`, and `units` for `sum`.
      residual: `concat` or `sum`.
      name: name of the variable scope.

    Returns:
      y, float32[B, units].

    Advice: three such layers replace a cross network and a deep network.

    Example:
      >>> factorized_interaction(tf.ones([2, 8]), units=6).shape
      TensorShape([2, 6])

    Source: Zhu et al., FINAL: Factorized Interaction Layer for CTR Prediction, SIGIR 2023, as in FuxiCTR.
    """
    linear, gate = tf.split(dense(inputs, units if residual == "concat" else 2 * units, name), 2, 1)
    return tf.concat([linear, linear * gate], 1) if residual == "concat" else linear + linear * gate
