"""The parts of FinalMLP: gates in front of its two streams, and their fusion behind them."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.layers.mlp import dense
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def gated(inputs: tf.Tensor, context: tf.Tensor | Sequence[tf.Tensor], units: int, name: str) -> tf.Tensor:
    """Computes `2 sigmoid(W_2 relu(W_1 c + b_1) + b_2) * x`: weights the features by the context of a stream.

    Args:
      inputs: x, float32[B, n].
      context: c, float32[B, m]; float32[1, m] gates all examples alike.
      units: width of the hidden layer.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: gate the two streams by different contexts, as the user and the item: equal ones learn the same.

    Example:
      >>> gated(tf.ones([2, 8]), tf.ones([2, 4]), units=16, name="gate").shape
      TensorShape([2, 8])

    Source: Mao et al., FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, AAAI 2023,
    "Stream-specific feature selection".
    """
    with tf1.variable_scope(name):
        hidden = tf.nn.relu(dense(context, units, "hidden"))
        return 2.0 * tf.sigmoid(dense(hidden, inputs.shape.as_list()[1], "gate")) * inputs


def fusion(first: tf.Tensor, second: tf.Tensor, heads: int = 1, name: str = "fusion", bias: float = 0.0) -> tf.Tensor:
    """Computes `b + w_1 o_1 + w_2 o_2 + sum_h o_1h' W_h o_2h`: the h-th parts of both streams interact.

    Args:
      first: o_1, float32[B, n].
      second: o_2, float32[B, m].
      heads: number of equal parts of each stream; divides n and m. With 1, all elements interact.
      name: name of the variable scope.
      bias: the number that b starts at.

    Returns:
      logits, float32[B, 1].

    Advice: raise `heads` with the width of the streams: W_h takes n m / heads weights in all.

    Example:
      >>> fusion(tf.ones([2, 8]), tf.ones([2, 4]), heads=2).shape
      TensorShape([2, 1])

    Source: see `gated`, "Stream-level fusion".
    """
    n, m = first.shape.as_list()[1] // heads, second.shape.as_list()[1] // heads
    with tf1.variable_scope(name):
        kernel = glorot("kernel", [heads, n, m], n, m)
        parts = tf.transpose(tf.reshape(first, [-1, heads, n]), [1, 0, 2])
        turned = tf.transpose(tf.matmul(parts, kernel), [1, 0, 2])
        together = turned * tf.reshape(second, [-1, heads, m])
        return dense([first, second], 1, "linear", bias=bias) + tf.reduce_sum(together, [1, 2])[:, None]
