"""Squeeze and excitation: weights the fields by their importance for the example."""

import tensorflow as tf

from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def senet(embeddings: tf.Tensor, reduction: int = 3, name: str = "senet") -> tf.Tensor:
    """Multiplies each field's vector by a weight, a function of the means of all fields.

        z_f = mean_d e_fd,    a = relu(W_2 relu(W_1 z)),    v_f = a_f e_f

    Args:
      embeddings: e, float32[B, F, dim].
      reduction: the hidden layer has F / reduction units, at least one.
      name: name of the variable scope.

    Returns:
      v, float32[B, F, dim].

    Advice: worth it with a dozen fields and more, if many of them say nothing; it drops a field by a weight of 0.

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
