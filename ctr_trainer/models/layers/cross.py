"""The cross network of DCN-v2."""

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, product
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


def cross(inputs: Columns, layers: int, rank: int = 0, experts: int = 1) -> tf.Tensor:
    """Crosses the input with itself: after l layers, each output is a polynomial of degree l + 1 of its elements.

        full:     x_{l+1} = x_0 * (W_l x_l + b_l) + x_l
        low rank: x_{l+1} = x_0 * (U_l V_l' x_l + b_l) + x_l
        experts:  x_{l+1} = x_0 * (sum_i G_i(x_l) U_li tanh(C_li tanh(V_li' x_l)) + b_l) + x_l,  G = softmax(W x_l + b)

    Args:
      inputs: x_0, float32[B, n]; the result has the same shape.
      layers: number of layers.
      rank: number of columns of U and V, far fewer than n; 0 for the full matrix W.
      experts: number of low-rank transformations that a gate mixes; 1 for no gate. More than 1 requires a rank.

    Use two or three layers. For wide inputs, use a rank of a quarter of the width, which suffices in the paper.

    Source: Wang et al., DCN V2: Improved Deep & Cross Network, WWW 2021, equations 1 to 4.
    """
    width, start, x = inputs.shape.as_list()[1], tf.convert_to_tensor(inputs), inputs
    with tf1.variable_scope("cross"):
        for index in range(layers):
            with tf1.variable_scope(f"layer_{index}"):
                projected = x
                if rank:
                    projected = product(x, glorot("v", [width, experts * rank], width, rank))
                if experts > 1:
                    projected = _mixed(projected, x, rank, experts)
                x = start * dense(projected, width, "w" if not rank else "u") + tf.convert_to_tensor(x)
    return x


def _mixed(projected: tf.Tensor, x: Columns, rank: int, experts: int) -> tf.Tensor:
    """Returns float32[B, experts * rank], each expert's part times its gate; `U_l` then adds the experts up."""
    c = glorot("c", [experts, rank, rank], rank, rank)
    by_expert = tf.transpose(tf.reshape(tf.tanh(projected), [-1, experts, rank]), [1, 0, 2])
    by_example = tf.transpose(tf.tanh(tf.matmul(by_expert, c)), [1, 0, 2])
    gate = tf.nn.softmax(dense(x, experts, "gate"))
    return tf.reshape(by_example * gate[..., None], [-1, experts * rank])
