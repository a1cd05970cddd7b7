"""The encoder block of a transformer."""

import math

import tensorflow as tf

from ctr_trainer.layers.layer_norm import layer_norm
from ctr_trainer.layers.masks import Present, masked_softmax
from ctr_trainer.layers.mlp import dense

tf1 = tf.compat.v1


def transformer_block(
    inputs: tf.Tensor,
    mask: tf.Tensor,
    heads: int,
    feed_forward_units: int,
    dropout: float = 0.0,
    training: bool = False,
    name: str = "transformer",
) -> tf.Tensor:
    """Applies self-attention and a feed-forward network, each with a residual and a layer norm behind it.

        y = norm(x + dropout(attention(x)))
        z = norm(y + dropout(leaky_relu(y W_1 + b_1) W_2 + b_2))

    Args:
      inputs: x, float32[B, L, n].
      mask: float32[B, L]; no position attends to positions of mask 0, and the outputs there are 0.
      heads: number of attention heads; divides n.
      feed_forward_units: width of the hidden layer.
      dropout: fraction of the outputs of the attention, and of the network, that are set to zero while training.
      training: whether this graph trains, so that dropout applies.
      name: name of the variable scope.

    Returns:
      float32[B, L, n].

    Advice: one block is enough for histories of tens; add positions to the inputs, as attention knows no order.

    Example:
      >>> transformer_block(tf.ones([2, 5, 4]), tf.ones([2, 5]), heads=2, feed_forward_units=16).shape
      TensorShape([2, 5, 4])

    Source: Vaswani et al., Attention Is All You Need, NIPS 2017, section 3; as in Chen et al., Behavior Sequence
    Transformer for E-commerce Recommendation in Alibaba, DLP-KDD 2019, section 2.2.
    """
    width, present = inputs.shape.as_list()[2], Present.of(mask)
    rate, values = dropout if training else 0.0, present.pack(inputs)
    with tf1.variable_scope(name):
        attended = _self_attention(values, present, mask, heads)
        middle = layer_norm(values + _dropped(attended, rate), name="attention_norm")
        hidden = dense(middle, feed_forward_units, "hidden")
        output = dense(tf.nn.leaky_relu(hidden), width, "output")
        return present.unpack(layer_norm(middle + _dropped(output, rate), name="output_norm"))


def self_attention(inputs: tf.Tensor, mask: tf.Tensor, heads: int, name: str = "attention") -> tf.Tensor:
    """Computes `concat_h(softmax(Q_h K_h' / sqrt(n / heads)) V_h) W + b`; positions attend to positions of mask 1.

    Args:
      inputs: float32[B, L, n].
      mask: float32[B, L], 0 or 1.
      heads: number of attention heads; divides n.
      name: name of the variable scope.

    Returns:
      float32[B, L, n]; 0 at positions of mask 0.

    Advice: take `transformer_block`, unless you have residuals and norms of your own.

    Example:
      >>> self_attention(tf.ones([2, 5, 4]), tf.ones([2, 5]), heads=2).shape
      TensorShape([2, 5, 4])
    """
    present = Present.of(mask)
    return present.unpack(_self_attention(present.pack(inputs), present, mask, heads, name))


def _self_attention(
    values: tf.Tensor, present: Present, mask: tf.Tensor, heads: int, name: str = "attention"
) -> tf.Tensor:
    """Computes `self_attention` of float32[N, n], the values that are present."""
    width = values.shape.as_list()[1]
    size = width // heads
    with tf1.variable_scope(name):
        # One product for queries, keys and values of all heads.
        projected = present.unpack(dense(values, 3 * width, "projection"))
        by_head = tf.transpose(tf.reshape(projected, [-1, present.length, 3 * heads, size]), [0, 2, 1, 3])
        queries, keys, contents = tf.split(by_head, 3, 1)
        scores = tf.matmul(queries, keys, transpose_b=True) * (1.0 / math.sqrt(size))
        weights = masked_softmax(scores, mask[:, None, None])
        joined = tf.transpose(tf.matmul(weights, contents), [0, 2, 1, 3])
        return dense(present.pack(tf.reshape(joined, [-1, present.length, width])), width, "output")


def _dropped(inputs: tf.Tensor, rate: float) -> tf.Tensor:
    return tf.nn.dropout(inputs, rate=rate) if rate else inputs
