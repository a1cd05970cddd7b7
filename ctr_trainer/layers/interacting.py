"""The interacting layer of AutoInt: self-attention between the fields of an example."""

import tensorflow as tf

from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def interacting(fields: tf.Tensor, heads: int, head_dim: int, name: str) -> tf.Tensor:
    """Replaces each field's vector by a mix of all fields' vectors, weighted by similarity, plus a residual.

        a_hmk = softmax_k <Q_h e_m, K_h e_k>,    e'_m = relu(concat_h(sum_k a_hmk V_h e_k) + W_res e_m)

    Args:
      fields: e, float32[B, F, n].
      heads: number of attentions side by side.
      head_dim: width of each attention's queries, keys and values.
      name: name of the variable scope.

    Returns:
      float32[B, F, heads * head_dim].

    Advice: two or three in a row, of two heads each; more fields cost by their square.

    Example:
      >>> interacting(tf.ones([2, 5, 4]), heads=2, head_dim=8, name="attention").shape
      TensorShape([2, 5, 16])

    Source: Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks, CIKM 2019,
    equations 5 to 8.
    """
    _, count, width = fields.shape.as_list()
    units = heads * head_dim
    flat = tf.reshape(fields, [-1, width])

    def projected(kernel: str) -> tf.Tensor:
        return tf.reshape(tf.matmul(flat, glorot(kernel, [width, units], width, units)), [-1, count, heads, head_dim])

    with tf1.variable_scope(name):
        queries, keys, values = (tf.transpose(projected(which), [0, 2, 1, 3]) for which in ("query", "key", "value"))
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True))
        mixed = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
        return tf.nn.relu(tf.reshape(mixed + projected("residual"), [-1, count, units]))
