"""Blocks that models stack over a matrix of tokens: RankMixer, WuKong and HSTU."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from ctr_trainer.layers.masks import Present
from ctr_trainer.layers.mlp import dense, mlp
from ctr_trainer.layers.normalization import layer_norm
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1
_FAR_BELOW = -1e4  # SiLU of it is 0.


def tokens_of(inputs: tf.Tensor, tokens: int, dim: int, name: str = "tokens") -> tf.Tensor:
    """Cuts the columns into as many equal parts as tokens and projects each by a matrix of its own.

    Args:
      inputs: float32[B, n]; zeros fill up the last part.
      tokens: T.
      dim: D.
      name: name of the variable scope.

    Returns:
      float32[T, B, D].

    Advice: order the features of a spec by what they are about, so that a token has a subject.

    Example:
      >>> tokens_of(tf.ones([2, 7]), tokens=4, dim=8).shape
      TensorShape([4, 2, 8])

    Source: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, CIKM 2025.
    """
    width = inputs.shape.as_list()[1]
    part = -(-width // tokens)
    parts = tf.reshape(tf.pad(inputs, [[0, 0], [0, part * tokens - width]]), [-1, tokens, part])
    return _for_each(tf.transpose(parts, [1, 0, 2]), dim, name)


def rank_mixer_block(inputs: tf.Tensor, expansion: int, name: str = "block") -> tf.Tensor:
    """Mixes the tokens without weights, then transforms each by a network of its own.

        S = norm(X + mix(X)),   Y_t = norm(S_t + gelu(S_t A_t + a_t) B_t + b_t)

    mix cuts each token into T heads; its token h is head h of all tokens, one after another.

    Args:
      inputs: X, float32[T, B, D]; T divides D.
      expansion: width of a network's hidden layer, in D.
      name: name of the variable scope.

    Returns:
      Y, float32[T, B, D].

    Advice: its cost is nearly all in large matrix products, which processors do best.

    Example:
      >>> rank_mixer_block(tf.ones([4, 2, 8]), expansion=2).shape
      TensorShape([4, 2, 8])

    Source: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, CIKM 2025; the dense variant.
    """
    tokens, _, dim = inputs.shape.as_list()
    with tf1.variable_scope(name):
        heads = tf.reshape(inputs, [tokens, -1, tokens, dim // tokens])
        mixed = tf.reshape(tf.transpose(heads, [2, 1, 0, 3]), [tokens, -1, dim])
        middle = layer_norm(inputs + mixed, name="mixing_norm")
        hidden = tf.nn.gelu(_for_each(middle, expansion * dim, "hidden"))
        return layer_norm(middle + _for_each(hidden, dim, "output"), name="output_norm")


def _for_each(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """Returns float32[T, B, units], each token of float32[T, B, n] times its own matrix plus its own bias."""
    tokens, _, width = inputs.shape.as_list()
    with tf1.variable_scope(name):
        kernel = glorot("kernel", [tokens, width, units], width, units)
        bias = tf1.get_variable("bias", [tokens, 1, units], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def wukong_layer(
    inputs: tf.Tensor,
    products: int,
    combinations: int,
    rank: int,
    hidden_units: Sequence[int],
    normalize: bool = False,
    name: str = "wukong",
) -> tf.Tensor:
    """Makes new vectors of the products of pairs, and as linear combinations, so that each layer doubles the degree.

        Y = norm([F; L] + R X),   F = mlp(norm(X X' P)) W + b,   L = C X

    X X' P are the dot products of all pairs of vectors, compressed by P as they are formed. R is the identity if there
    are as many new vectors as old ones. Unless `normalize` is true, norm is the identity, too.

    Args:
      inputs: X, float32[B, n, dim].
      products: number of vectors in F.
      combinations: number of vectors in L.
      rank: number of columns of P, float32[n, rank].
      hidden_units: widths of the hidden layers between the products and F.
      normalize: whether norm is layer normalization.
      name: name of the variable scope.

    Returns:
      Y, float32[B, products + combinations, dim].

    Advice: more layers and a higher rank pay as the data grow; keep as many products as combinations. Normalization
    scales the short vector of a rare id, which is mostly noise, to the length of all others.

    Example:
      >>> wukong_layer(tf.ones([2, 5, 4]), products=3, combinations=2, rank=2, hidden_units=(8,)).shape
      TensorShape([2, 5, 4])

    Source: Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024, where norm is layer
    normalization. Each vector is normalised on its own, as in FuxiCTR.
    """
    _, count, dim = inputs.shape.as_list()
    with tf1.variable_scope(name):
        compressed = _combined(inputs, rank, "projection")
        pairs = tf.reshape(tf.matmul(inputs, compressed, transpose_b=True), [-1, count * rank])
        hidden = mlp(layer_norm(pairs, name="pairs_norm") if normalize else pairs, hidden_units)
        of_products = tf.reshape(dense(hidden, products * dim, "products"), [-1, products, dim])
        both = tf.concat([of_products, _combined(inputs, combinations, "combinations")], 1)
        residual = inputs if count == products + combinations else _combined(inputs, both.shape[1], "residual")
        return layer_norm(both + residual) if normalize else both + residual


def _combined(inputs: tf.Tensor, count: int, name: str) -> tf.Tensor:
    """Returns float32[B, count, dim], linear combinations of float32[B, n, dim]."""
    kernel = glorot(name, [inputs.shape.as_list()[1], count], inputs.shape.as_list()[1], count)
    return tf.einsum("bnd,nk->bkd", inputs, kernel)


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
