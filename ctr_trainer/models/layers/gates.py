"""Layers that multiply their input by learned factors: field weights, masks, gates, products, quadratic neurons."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.models.layers.dropout import dropout as dropped
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


def senet(embeddings: tf.Tensor, reduction: int = 3, name: str = "senet") -> tf.Tensor:
    """Multiplies each field's vector by a weight that is computed from the means of all fields.

        z_f = mean_d e_fd,    a = relu(W_2 relu(W_1 z)),    v_f = a_f e_f

    Args:
      embeddings: e, float32[B, F, dim].
      reduction: divisor of F that gives the number of hidden units, at least one.
      name: name of the variable scope.

    Returns:
      v, float32[B, F, dim].

    Advice: use it for a dozen or more fields if many of them are uninformative; it drops a field with a weight of 0.

    Example:
      >>> senet(tf.ones([2, 6, 4]), reduction=3).shape
      TensorShape([2, 6, 4])

    Source: Huang et al., FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for Click-Through Rate
    Prediction, RecSys 2019, section 3, "SENET layer".
    """
    count = embeddings.shape.as_list()[1]
    reduced = max(1, count // reduction)
    with tf1.variable_scope(name):
        hidden = tf.nn.relu(tf.matmul(tf.reduce_mean(embeddings, 2), glorot("w1", [count, reduced], count, reduced)))
        weights = tf.nn.relu(tf.matmul(hidden, glorot("w2", [reduced, count], reduced, count)))
    return embeddings * weights[:, :, None]


def mask_block(
    inputs: tf.Tensor, context: tf.Tensor, units: int, reduction: float, activation: str = "relu", name: str = "block"
) -> tf.Tensor:
    """Computes `activation(layer_norm(W (mask * x)))` with the instance-guided mask `W_2 relu(W_1 c + b_1) + b_2`.

    Args:
      inputs: x, float32[B, n]: normalised embeddings, or the output of the previous block.
      context: c, float32[B, m]: the embeddings.
      units: width of the output.
      reduction: the mask's hidden layer has `reduction * n` units.
      activation: name of a function in `tf.nn`; the paper uses relu. The mask's hidden layer always uses relu.
      name: name of the variable scope.

    Returns:
      float32[B, units].

    Advice: first normalise the embeddings with `layer_norm`, but not the context.

    Example:
      >>> mask_block(tf.ones([2, 8]), tf.ones([2, 8]), units=4, reduction=1.0).shape
      TensorShape([2, 4])

    Source: Wang et al., MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask,
    DLP-KDD 2021, section 3, "Instance-guided mask" and "MaskBlock".
    """
    width = inputs.shape.as_list()[1]
    with tf1.variable_scope(name):
        hidden = tf.nn.relu(dense(context, max(1, int(reduction * width)), "aggregation"))
        mask = dense(hidden, width, "projection")
        return getattr(tf.nn, activation)(layer_norm(dense(inputs * mask, units, "output")))


def gated(inputs: tf.Tensor, context: tf.Tensor | Sequence[tf.Tensor], units: int, name: str) -> tf.Tensor:
    """Computes `2 sigmoid(W_2 relu(W_1 c + b_1) + b_2) * x`: weights the features by the context of a stream.

    Args:
      inputs: x, float32[B, n].
      context: c, float32[B, m]; float32[1, m] gates all examples alike.
      units: width of the hidden layer.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: gate the two streams by different contexts, such as the user and the item; with equal contexts, both streams
    learn the same.

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
      bias: initial value of b.

    Returns:
      logits, float32[B, 1].

    Advice: increase `heads` with the width of the streams: all W_h together have n m / heads weights.

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


def factorized_interaction(
    inputs: Columns | Sequence[Columns], units: int, residual: str = "concat", name: str = "factorized"
) -> tf.Tensor:
    """Multiplies two linear maps of the input, so that each layer doubles the degree of the interactions.

        [a, c] = x W + b,   y = [a, a * c] for `concat`,   y = a + a * c for `sum`

    Args:
      inputs: x, float32[B, n_i], or a list of such tensors, which is treated as their concatenation.
      units: width of y; even for `concat`. a and c have `units / 2` columns for `concat`, and `units` for `sum`.
      residual: `concat` or `sum`.
      name: name of the variable scope.

    Returns:
      y, float32[B, units].

    Advice: use three of these layers instead of a cross network and a deep network.

    Example:
      >>> factorized_interaction(tf.ones([2, 8]), units=6).shape
      TensorShape([2, 6])

    Source: Zhu et al., FINAL: Factorized Interaction Layer for CTR Prediction, SIGIR 2023, as in FuxiCTR.
    """
    linear, gate = tf.split(dense(inputs, units if residual == "concat" else 2 * units, name), 2, 1)
    return tf.concat([linear, linear * gate], 1) if residual == "concat" else linear + linear * gate


def quadratic(inputs: tf.Tensor, rows: int, dropout: float = 0.0, name: str = "quadratic") -> tf.Tensor:
    """Computes `x * sum_r relu(W_r x + b_r) + x`: the Khatri-Rao product of x and `rows` maps, summed over the maps.

    Args:
      inputs: x, float32[B, n].
      rows: number of maps W_r, float32[n, n].
      dropout: fraction of the rectified values that are set to zero; 0 unless training.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: use two rows; the cost is that of the same number of full cross layers.

    Example:
      >>> quadratic(tf.ones([2, 8]), rows=2).shape
      TensorShape([2, 8])

    Source: Li et al., Revisiting Feature Interactions from the Perspective of Quadratic Neural Networks for
    Click-through Rate Prediction, KDD 2025; the authors' neuron type T26 with one head.
    """
    width = inputs.shape.as_list()[1]
    hidden = tf.nn.relu(dense(inputs, rows * width, name))
    hidden = dropped(hidden, dropout)
    return inputs * tf.reduce_sum(tf.reshape(hidden, [-1, rows, width]), 1) + inputs
