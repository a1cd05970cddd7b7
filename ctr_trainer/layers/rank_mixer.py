"""The block of RankMixer: tokens that swap their parts, and a network for each token."""

import tensorflow as tf

from ctr_trainer.layers.layer_norm import layer_norm
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


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
