"""The auxiliary loss that teaches interest states to tell the next behaviour."""

import tensorflow as tf

from ctr_trainer.layers.gru import Packed


def next_behaviour_loss(states: tf.Tensor, history: tf.Tensor, packed: Packed, weight: tf.Tensor) -> tf.Tensor:
    """Computes `-mean(log sigmoid(<h_t, e_{t+1}>) + log(1 - sigmoid(<h_t, e'_{t+1}>)))`.

    The mean is over all behaviours t that have a next one.

    e' is a behaviour that did not happen: the one at the same position in the history of the previous example in the
    batch (for the first example, of the last one). If that history is shorter, there is no e', and t does not count.

    Args:
      states: h, float32[N, dim], the state after each behaviour, see `Packed`.
      history: e, float32[N, dim].
      packed: the order of the N behaviours.
      weight: float32[B], the weight of each example in the mean.

    Returns:
      scalar; 0 if no t counts.

    Caveat: in a batch of one example, e' is the example's own next behaviour.

    Advice: shuffle the data: the behaviours that did not happen are taken from the previous example of the batch.

    Example:
      >>> packed = Packed.of(tf.ones([2, 5]))
      >>> next_behaviour_loss(tf.ones([10, 4]), tf.ones([10, 4]), packed, tf.ones([2])).shape
      TensorShape([])

    Source: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019, section 3.3.
    """
    first = packed.sizes[0]  # The rows of the later steps come after it.
    steps, examples, following = packed.steps[first:], packed.examples[first:], history[first:]
    starts = tf.gather(packed.starts, steps)
    places = tf.range(first, first + tf.shape(steps)[0]) - starts
    before = tf.gather(states, tf.gather(packed.starts, steps - 1) + places)
    other = tf.math.floormod(examples - 1, tf.shape(packed.lengths)[0])
    is_there = tf.gather(packed.lengths, other) > steps
    rows = tf.where(is_there, starts + tf.gather(packed.places, other), tf.zeros_like(starts))
    counted = tf.where(is_there, tf.gather(weight, examples), tf.zeros_like(starts, tf.float32))
    happened = tf.reduce_sum(before * following, 1)
    did_not = tf.reduce_sum(before * tf.gather(history, rows), 1)
    losses = tf.nn.softplus(-happened) + tf.nn.softplus(did_not)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))
