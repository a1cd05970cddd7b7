"""Explicit interactions of bounded degree: the cross network of DCN-v2, and xDeepFM's compressed interactions."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, product
from ctr_trainer.models.layers.dropout import dropout as dropped
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


def cross(inputs: Columns, layers: int, rank: int = 0, experts: int = 1, name: str = "cross") -> tf.Tensor:
    """Crosses the input with itself: after l layers, each output is a polynomial of degree l + 1 of its elements.

        full:     x_{l+1} = x_0 * (W_l x_l + b_l) + x_l
        low rank: x_{l+1} = x_0 * (U_l V_l' x_l + b_l) + x_l
        experts:  x_{l+1} = x_0 * (sum_i G_i(x_l) U_li tanh(C_li tanh(V_li' x_l)) + b_l) + x_l,  G = softmax(W x_l + b)

    Args:
      inputs: x_0, float32[B, n].
      layers: number of layers.
      rank: number of columns of U and V, far fewer than n; 0 for the full matrix W.
      experts: number of low-rank transformations that a gate mixes; 1 for no gate. More than 1 requires a rank.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: use two or three layers. For wide inputs, use a rank of a quarter of the width, which suffices in the paper.

    Example:
      >>> cross(tf.ones([2, 8]), layers=2, rank=2).shape
      TensorShape([2, 8])

    Source: Wang et al., DCN V2: Improved Deep & Cross Network, WWW 2021, equations 1 to 4.
    """
    width, start, x = inputs.shape.as_list()[1], tf.convert_to_tensor(inputs), inputs
    with tf1.variable_scope(name):
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


def gated_cross(inputs: tf.Tensor, layers: int, name: str = "gated_cross") -> tf.Tensor:
    """Crosses the input with itself as `cross` does, with a gate that filters each layer's interactions.

        x_{l+1} = x_0 * (W_l x_l + b_l) * sigmoid(V_l x_l) + x_l

    Args:
      inputs: x_0, float32[B, n].
      layers: number of layers.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: use more layers than in `cross`, because a gate can suppress an interaction that is only noise.

    Example:
      >>> gated_cross(tf.ones([2, 8]), layers=2).shape
      TensorShape([2, 8])

    Source: Wang et al., Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction, CIKM 2023. b_l
    starts at 0; in the FuxiCTR implementation it starts at uniform random numbers in [0, 1).
    """
    width, x = inputs.shape.as_list()[1], inputs
    with tf1.variable_scope(name):
        for index in range(layers):
            with tf1.variable_scope(f"layer_{index}"):
                gate = tf.sigmoid(tf.matmul(x, glorot("gate", [width, width], width, width)))
                x = inputs * dense(x, width, "w") * gate + x
    return x


def masked_cross(
    inputs: tf.Tensor,
    layers: int,
    exponential: bool = False,
    dropout: float = 0.0,
    name: str = "masked_cross",
) -> tf.Tensor:
    """Crosses with c and a masked copy of c, which halves the matrices; columns alternate between c and the copy.

        c_l = W_l x_l,   m_l = c_l * relu(layer norm(c_l)),   x_{l+1} = x_0 * ([c_l, m_l] + b_l) + x_l

    With `exponential`, x_l replaces x_0, so that each layer doubles the degree of the interactions; otherwise each
    layer increases the degree by one.

    Args:
      inputs: x_0, float32[B, n]; W_l is float32[n, n / 2].
      layers: number of layers.
      exponential: whether a layer crosses its input with itself.
      dropout: fraction of each layer's outputs that are set to zero; 0 unless training.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: use an exponential and a linear one in parallel, as `models.fcn` does.

    Example:
      >>> masked_cross(tf.ones([2, 8]), layers=2, exponential=True).shape
      TensorShape([2, 8])

    Source: Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, arXiv
    2407.13349, 2024, as in the authors' code, except that b_l starts at 0, not at uniform random numbers in [0, 1).
    """
    width, x = inputs.shape.as_list()[1], inputs
    half = (width + 1) // 2
    with tf1.variable_scope(name):
        for index in range(layers):
            with tf1.variable_scope(f"layer_{index}"):
                c = tf.matmul(x, glorot("kernel", [width, half], width, half))
                masked = c * tf.nn.relu(layer_norm(c))
                both = tf.reshape(tf.stack([c, masked], 2), [-1, 2 * half])[:, :width]
                bias = tf1.get_variable("bias", [width], initializer=tf1.zeros_initializer())
                x = (x if exponential else inputs) * (both + bias) + x
                x = dropped(x, dropout)
    return x


def cin(embeddings: tf.Tensor, layer_sizes: Sequence[int], name: str = "cin") -> tf.Tensor:
    """Computes interactions of growing degree between vectors, and sums each layer's feature maps over the dims.

        X^k_h = sum_i sum_j W^kh_ij (X^{k-1}_i * X^0_j),    p^k_h = sum_d X^k_hd

    Args:
      embeddings: X^0, float32[B, F, dim].
      layer_sizes: number of feature maps of each layer.
      name: name of the variable scope.

    Returns:
      p^1, p^2, ... concatenated, float32[B, sum(layer_sizes)].

    Advice: begin with two layers. The time grows with F and with the product of the sizes of consecutive layers.

    Example:
      >>> cin(tf.ones([2, 5, 4]), (16, 8)).shape
      TensorShape([2, 24])

    Source: Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems, KDD
    2018, equations 6 and 7; with the identity as activation, which its section 4 finds best.
    """
    _, fields, dim = embeddings.shape.as_list()
    first = tf.reshape(tf.transpose(embeddings, [0, 2, 1]), [-1, fields])
    maps, pooled = first, []
    with tf1.variable_scope(name):
        for index, size in enumerate(layer_sizes):
            pairs = maps.shape.as_list()[1] * fields
            kernel = glorot(f"kernel_{index}", [pairs, size], pairs, size)
            maps = tf.matmul(tf.reshape(outer(maps, first), [-1, pairs]), kernel)
            pooled.append(tf.reduce_sum(tf.reshape(maps, [-1, dim, size]), 1))
    return tf.concat(pooled, 1)


@tf.custom_gradient
def outer(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """Returns the products of all pairs, float32[n, h, f], of float32[n, h] and float32[n, f].

    The gradients are matrix-vector products; automatic differentiation would create two more tensors of this size.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (
            tf.squeeze(tf.matmul(upstream, b[:, :, None]), 2),
            tf.squeeze(tf.matmul(a[:, None, :], upstream), 1),
        )

    return a[:, :, None] * b[:, None, :], gradient
