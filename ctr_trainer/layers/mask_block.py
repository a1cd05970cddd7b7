"""The block of MaskNet: a layer whose inputs are multiplied by a mask made from the whole example."""

import tensorflow as tf

from ctr_trainer.layers.layer_norm import layer_norm
from ctr_trainer.layers.mlp import dense

tf1 = tf.compat.v1


def mask_block(
    inputs: tf.Tensor, context: tf.Tensor, units: int, reduction: float, activation: str = "relu", name: str = "block"
) -> tf.Tensor:
    """Computes `activation(layer_norm(W (mask * x)))` with the instance-guided mask `W_2 relu(W_1 c + b_1) + b_2`.

    Args:
      inputs: x, float32[B, n]: normalised embeddings, or the output of the block before.
      context: c, float32[B, m]: the embeddings.
      units: width of the output.
      reduction: the mask's hidden layer has `reduction * n` units.
      activation: a function's name in `tf.nn`; the paper's is relu. The mask's hidden layer keeps relu.
      name: name of the variable scope.

    Returns:
      float32[B, units].

    Advice: normalise the embeddings first, by `layer_norm`; the context stays as it is.

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
