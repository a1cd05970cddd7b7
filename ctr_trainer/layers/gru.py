"""A recurrent network over a short history, and the one whose updates an attention weighs."""

import tensorflow as tf

from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def gru(inputs, mask, units, attention=None, name="gru"):
    """Gated recurrent units, left to right; with `attention`, DIEN's AUGRU.

        u, r = sigmoid(x_t W_u + h U_u + b_u), sigmoid(x_t W_r + h U_r + b_r)
        c    = tanh(x_t W_c + r * (h U_c + d_c) + b_c)
        h_t  = (1 - s_t u) h + s_t u c,   s_t = mask_t, times a_t with attention

    so padding, and what the attention gives no weight, leaves the state as it is. The reset gate acts on `h U_c + d_c`,
    as in cuDNN and Keras, not on h: one matrix product a step. The products with the inputs are one for all steps.
    Unrolled: the graph grows with L, which for the histories of click models (tens) is faster than a loop.

    Args:
      inputs: float32[B, L, n].
      mask: float32[B, L], 1 where there is an input.
      units: width of the state, which starts at 0.
      attention: a, float32[B, L]; None for a plain GRU.

    Returns:
      states float32[B, L, units] after each step; at the last one, padding or not, the state after the whole history.

    Source: Cho et al., Learning Phrase Representations, EMNLP 2014, section 2.3; Zhou et al., Deep Interest Evolution
    Network for Click-Through Rate Prediction, AAAI 2019, section 3.4.
    """
    length, width = inputs.shape[1:]
    with tf1.variable_scope(name):
        # Side by side, three kernels, each with a fan-in and fan-out of its own.
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
