"""The auxiliary loss that teaches interest states what comes next."""

import tensorflow as tf


def next_behaviour_loss(states, history, mask, weight):
    """`-mean log sigmoid(<h_t, e_{t+1}>) + log(1 - sigmoid(<h_t, e'_{t+1}>))` over all steps that have a next one.

    e' stands for a behaviour that did not happen: at the same place in the history of the example before in the batch,
    the last one's for the first. Steps where that is shorter have no e' and do not count.

    Args:
      states: h, float32[B, L, dim]; of the example's history up to t.
      history: e, float32[B, L, dim].
      mask: float32[B, L].
      weight: float32[B], of each example in the mean.

    Returns:
      scalar; 0 where nothing has a next behaviour.

    Caveat: a batch of one example has itself as the other one.

    Source: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019, section 3.3.
    """
    states, following, present = states[:, :-1], history[:, 1:], mask[:, 1:]
    other = tf.roll(following, 1, 0)
    counted = present * tf.roll(present, 1, 0) * weight[:, None]
    happened = tf.reduce_sum(states * following, 2)
    did_not = tf.reduce_sum(states * other, 2)
    losses = tf.nn.softplus(-happened) + tf.nn.softplus(did_not)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))
