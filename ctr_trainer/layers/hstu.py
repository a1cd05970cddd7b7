"""The block of HSTU: attention without a softmax, and a gate for each of its outputs."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr_trainer.layers.layer_norm import layer_norm
from ctr_trainer.layers.masks import Present
from ctr_trainer.layers.mlp import dense

tf1 = tf.compat.v1
_FAR_BELOW = -1e4  # SiLU of it is 0.


def hstu_block(
    tokens: tf.Tensor,
    mask: tf.Tensor,
    context: int,
    heads: int,
    dropout: float = 0.0,
    target_only: bool = False,
    name: str = "hstu",
) -> tf.Tensor:
    """Lets each token add up what it finds at the others, as much of it as is there.

        [u_i, q_i] = silu(norm(x_i) W_1 + b_1),   [v_j, k_j] = silu(norm(x_j) W_2 + b_2)
        a_i = 1 / n * sum_j silu(<q_i, k_j> + r_ij) v_j,   y_i = x_i + (norm(a_i) * u_i) W_3 + b_3

    The products are computed for each head. n is the number of the example's tokens. The first tokens are the context,
    which all tokens attend to; the others are in order, the newest first, and each attends to itself and to older ones.
    r_ij is a learned number for each token of the context, and for each distance j - i of the others.

    Args:
      tokens: x, float32[B, N, dim]: the context, the target, the behaviours from the newest on, then padding.
      mask: float32[B, N], 1 for a token and 0 for padding.
      context: number of tokens of the context.
      heads: number of attention heads; divides dim.
      dropout: fraction of the gated values that are set to zero; 0 unless training.
      target_only: whether only the target's output is computed, for the last block.
      name: name of the variable scope.

    Returns:
      y, float32[B, N, dim], zeros for padding; or the target's alone, float32[B, dim].

    Advice: the weights of a history are not normalised, so many similar behaviours count more than one.

    Example:
      >>> hstu_block(tf.ones([2, 7, 4]), tf.ones([2, 7]), context=2, heads=2).shape
      TensorShape([2, 7, 4])

    Source: Zhai et al., Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
    Recommendations, ICML 2024, as in the authors' code. The bias has no part by time; it starts at 0, in their code at
    normal numbers of deviation 0.02. Their code divides by the longest length; the norm behind it makes both equal.
    """
    _, length, width = tokens.shape.as_list()
    present, size = Present.of(mask), width // heads
    values = present.pack(tokens)
    count = tf.reduce_sum(mask, 1)
    with tf1.variable_scope(name):
        bias = tf1.get_variable("bias", [length], initializer=tf1.zeros_initializer())
        normed = layer_norm(values, name="input_norm")
        askers, asking = values, normed
        if target_only:
            rows = tf.reshape(present.rows, [-1, length])[:, context] - 1
            askers, asking = tokens[:, context], tf.gather(normed, rows)
        gate, queries = tf.split(tf.nn.silu(dense(asking, 2 * width, "gates_and_queries")), 2, 1)
        contents, keys = tf.split(tf.nn.silu(dense(normed, 2 * width, "values_and_keys")), 2, 1)
        if target_only:
            products = tf.reshape(keys * present.repeat(queries), [-1, heads, size])
            biases = _gathered(bias, present.places % length)
            weights = tf.nn.silu(tf.reduce_sum(products, 2) + biases[:, None])
            weighted = tf.reshape(contents, [-1, heads, size]) * weights[..., None]
            attended = present.sum(tf.reshape(weighted, [-1, width])) / count[:, None]
        else:
            scores = tf.matmul(_by_head(queries, present, heads), _by_head(keys, present, heads), transpose_b=True)
            weights = tf.nn.silu(scores + _biases(bias, context)) / count[:, None, None, None]
            joined = tf.matmul(weights, _by_head(contents, present, heads))  # Padding has contents of 0.
            attended = present.pack(tf.reshape(tf.transpose(joined, [0, 2, 1, 3]), [-1, length, width]))
        gated = layer_norm(attended, name="attention_norm") * gate
        output = askers + dense(tf.nn.dropout(gated, rate=dropout) if dropout else gated, width, "output")
        return output if target_only else present.unpack(output)


def _by_head(packed: tf.Tensor, present: Present, heads: int) -> tf.Tensor:
    """Returns float32[B, heads, N, size] of float32[M, heads * size]."""
    size = packed.shape.as_list()[1] // heads
    return tf.transpose(tf.reshape(present.unpack(packed), [-1, present.length, heads, size]), [0, 2, 1, 3])


def _biases(bias: tf.Tensor, context: int) -> tf.Tensor:
    """Returns float32[N, N]: r_ij for the tokens j that token i attends to, and far below 0 for the others."""
    i, j = np.indices(2 * bias.shape.as_list())
    of_context = j < context
    allowed = of_context | ((i >= context) & (j >= i))
    places = np.where(of_context, j, np.clip(j - i + context, 0, len(i) - 1))
    return _gathered(bias, places) + np.where(allowed, 0, _FAR_BELOW).astype(np.float32)


def _gathered(bias: tf.Variable, places: tf.Tensor | np.ndarray) -> tf.Tensor:
    @tf.custom_gradient
    def gathered(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        # A dense gradient, which workers exchange as it is.
        count = bias.shape.as_list()[0]
        return tf.gather(given, places), lambda g: tf.math.unsorted_segment_sum(g, places, count)

    return gathered(tf.convert_to_tensor(bias))
