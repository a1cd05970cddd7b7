"""The auxiliary loss that teaches interest states to tell the next behaviour."""

import tensorflow as tf


def next_behaviour_loss(states: tf.Tensor, history: tf.Tensor, mask: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Computes `-mean(log sigmoid(<h_t, e_{t+1}>) + log(1 - sigmoid(<h_t, e'_{t+1}>)))`.

    The mean is over all behaviours t that have a next one.

    e' is a behaviour that did not happen: the one at the same position in the history of the previous example in the
    batch (for the first example, of the last one). If that history is shorter, there is no e', and t does not count.

    Args:
      states: h, float32[B, L, dim], the state after each behaviour.
      history: e, float32[B, L, dim].
      mask: float32[B, L], 1 for a behaviour and 0 for padding.
      weight: float32[B], the weight of each example in the mean.

    Returns:
      scalar; 0 if no t counts.

    Caveat: in a batch of one example, e' is the example's own next behaviour.

    Advice: shuffle the data: the behaviours that did not happen are taken from the previous example of the batch.

    Example:
      >>> states = history = tf.ones([2, 5, 4])
      >>> next_behaviour_loss(states, history, tf.ones([2, 5]), tf.ones([2])).shape
      TensorShape([])

    Source: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019, section 3.3.
    """
    states, following, present = states[:, :-1], history[:, 1:], mask[:, 1:]
    other = tf.roll(following, 1, 0)
    counted = present * tf.roll(present, 1, 0) * weight[:, None]
    happened = tf.reduce_sum(states * following, 2)
    did_not = tf.reduce_sum(states * other, 2)
    losses = tf.nn.softplus(-happened) + tf.nn.softplus(did_not)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))
