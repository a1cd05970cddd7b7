"""A recurrent network over a short history, and its variant whose updates are weighted by an attention."""

import tensorflow as tf

from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def gru(
    inputs: tf.Tensor, mask: tf.Tensor, units: int, attention: tf.Tensor | None = None, name: str = "gru"
) -> tf.Tensor:
    """Runs gated recurrent units over a history, from left to right; with `attention`, DIEN's AUGRU.

        u, r = sigmoid(x_t W_u + h U_u + b_u), sigmoid(x_t W_r + h U_r + b_r)
        c    = tanh(x_t W_c + r * (h U_c + d_c) + b_c)
        h_t  = (1 - s_t u) h + s_t u c,   s_t = mask_t, times a_t with attention

    So the state stays as it is at padding and at inputs of attention 0. The reset gate acts on `h U_c + d_c`, as in
    cuDNN and Keras, not on h: this takes one matrix product per step. One product with the inputs serves all steps. The
    steps are unrolled, so the graph grows with L; for the histories of click models (tens of inputs) that is faster
    than a loop.

    Args:
      inputs: x, float32[B, L, n].
      mask: float32[B, L], 1 for an input and 0 for padding.
      units: width of the state, which starts at 0.
      attention: a, float32[B, L]; None for a plain GRU.
      name: of the variable scope.

    Returns:
      float32[B, L, units], the state after each step. The last one, padding or not, is the state after the whole
      history.

    Advice: cut histories to some tens of inputs, the newest: its steps follow one another, and each is a matrix
    product.

    Example:
      >>> states = gru(tf.ones([2, 5, 4]), tf.ones([2, 5]), units=3)
      >>> states[:, -1].shape  # After the whole history.
      TensorShape([2, 3])

    Source: Cho et al., Learning Phrase Representations, EMNLP 2014, section 2.3; Zhou et al., Deep Interest Evolution
    Network for Click-Through Rate Prediction, AAAI 2019, section 3.4.
    """
    length, width = inputs.shape.as_list()[1:]
    with tf1.variable_scope(name):
        # Three kernels side by side, each with its own fan-in and fan-out.
        kernel = glorot("kernel", [width, 3 * units], width, units)
        bias = tf1.get_variable("bias", [3 * units], initializer=tf1.zeros_initializer())
        recurrent = glorot("recurrent_kernel", [units, 3 * units], units, units)
        recurrent_bias = tf1.get_variable("recurrent_bias", [3 * units], initializer=tf1.zeros_initializer())
    by_time = tf.reshape(tf.transpose(inputs, [1, 0, 2]), [-1, width])
    projected = tf.reshape(tf.nn.bias_add(tf.matmul(by_time, kernel), bias), [length, -1, 3 * units])
    scales = tf.transpose(mask if attention is None else mask * attention)[..., None]
    state = tf.zeros_like(projected[0, :, :units])
    states = []
    for of_input, scale in zip(tf.unstack(projected), tf.unstack(scales, length), strict=True):
        of_state = tf.nn.bias_add(tf.matmul(state, recurrent), recurrent_bias)
        gates = tf.sigmoid(of_input[:, : 2 * units] + of_state[:, : 2 * units])
        update, reset = tf.split(gates, 2, 1)
        candidate = tf.tanh(of_input[:, 2 * units :] + reset * of_state[:, 2 * units :])
        state += scale * update * (candidate - state)
        states.append(state)
    return tf.stack(states, 1)
