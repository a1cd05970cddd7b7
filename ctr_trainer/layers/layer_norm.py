"""Layer normalisation."""

from collections.abc import Callable

import tensorflow as tf

tf1 = tf.compat.v1


def layer_norm(inputs: tf.Tensor, shared: bool = True, epsilon: float = 1e-5, name: str = "layer_norm") -> tf.Tensor:
    """Normalises the last axis: `gamma * (x - mean(x)) / sqrt(var(x) + epsilon) + beta`.

    Args:
      inputs: x, float32[B, n] or float32[B, F, n].
      shared: whether the F vectors of an example share gamma and beta, float32[n]; else each has its own.
      epsilon: added to the variance, so that a vector of equal values stays finite.
      name: name of the variable scope.

    Returns:
      float32 of the shape of `inputs`.

    Advice: normalise embeddings with `shared=False`: fields differ in their scale.

    Example:
      >>> layer_norm(tf.ones([2, 5, 4]), shared=False).shape
      TensorShape([2, 5, 4])

    Source: Ba et al., Layer Normalization, arXiv 1607.06450, section 3.
    """
    shape = [inputs.shape.as_list()[-1]] if shared else inputs.shape.as_list()[1:]
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", shape, initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", shape, initializer=tf1.zeros_initializer())
    return _normalized(inputs, epsilon) * gamma + beta


def _normalized(inputs: tf.Tensor, epsilon: float) -> tf.Tensor:
    @tf.custom_gradient
    def normalized(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        """Its gradient is `(g - mean(g) - y mean(g y)) / sqrt(var(x) + epsilon)`, with y the output."""
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), -1, keepdims=True) + epsilon)
        output = centered * scale

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            along = tf.reduce_mean(upstream * output, -1, keepdims=True)
            return scale * (upstream - tf.reduce_mean(upstream, -1, keepdims=True) - output * along)

        return output, gradient

    return normalized(inputs)
