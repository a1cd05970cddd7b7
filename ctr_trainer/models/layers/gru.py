"""Recurrent networks over a short history: GRU, AUGRU, and the auxiliary loss of DIEN."""

import dataclasses

import tensorflow as tf

from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Packed:
    """The row of each input if histories of different lengths are stored by time, without padding.

    The first inputs of all histories come first, then all second inputs, and so on. Within a step, longer histories
    come first. Therefore a step of a recurrent network processes only the histories that have not ended, which are the
    first rows of the previous step, and no padding.

    Attributes:
      sizes: int32[L], the number of histories that have an input at each step, in descending order.
      starts: int32[L], the row at which each step starts.
      steps: int32[N], the step of each of the N rows.
      examples: int32[N], the example of each row.
      places: int32[B], the row of each example within each of its steps.
      lengths: int32[B], the length of each history.

    `Present` keeps the values of an example together instead.

    Example:
      >>> packed = Packed.of(tf.constant([[1.0, 0.0], [1.0, 1.0]]))
      >>> packed.pack(tf.constant([[[1.0], [0.0]], [[2.0], [3.0]]])).eval()
      array([[2.],
             [1.],
             [3.]], dtype=float32)
    """

    sizes: tf.Tensor
    starts: tf.Tensor
    steps: tf.Tensor
    examples: tf.Tensor
    places: tf.Tensor
    lengths: tf.Tensor

    @classmethod
    def of(cls, mask: tf.Tensor) -> "Packed":
        """Returns the order of the inputs of a mask float32[B, L], 1 for an input and 0 for the padding at the end."""
        lengths = tf.cast(tf.reduce_sum(mask, 1), tf.int32)
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        number = tf.range(mask.shape.as_list()[1])
        present = number[:, None] < tf.gather(lengths, order)[None]
        sizes = tf.reduce_sum(tf.cast(present, tf.int32), 1)
        steps, places = tf.unstack(tf.cast(tf.where(present), tf.int32), 2, axis=1)
        return cls(
            sizes=sizes,
            starts=tf.cumsum(sizes, exclusive=True),
            steps=steps,
            examples=tf.gather(order, places),
            places=tf.math.invert_permutation(order),
            lengths=lengths,
        )

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Converts float32[B, L, n] to float32[N, n]."""
        _, length, width = values.shape.as_list()
        return tf.gather(tf.reshape(values, [-1, width]), self.examples * length + self.steps)

    def last(self, states: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, n], the last vector of each history in float32[N, n]; zeros for an empty history."""
        rows = tf.gather(self.starts, tf.maximum(self.lengths - 1, 0)) + self.places + 1
        with_zeros = tf.pad(states, [[1, 0], [0, 0]])
        return tf.gather(with_zeros, tf.where(self.lengths < 1, tf.zeros_like(rows), rows))

    def softmax(self, scores: tf.Tensor) -> tf.Tensor:
        """Computes the softmax over each history of float32[N]."""
        count = tf.shape(self.lengths)[0]
        highest = tf.stop_gradient(tf.math.unsorted_segment_max(scores, self.examples, count))
        powers = tf.exp(scores - tf.gather(highest, self.examples))
        return powers / tf.gather(tf.math.unsorted_segment_sum(powers, self.examples, count), self.examples)


def gru(
    inputs: tf.Tensor, packed: Packed, units: int, attention: tf.Tensor | None = None, name: str = "gru"
) -> tf.Tensor:
    """Runs gated recurrent units over histories, from left to right; with `attention`, DIEN's AUGRU.

        u, r = sigmoid(x_t W_u + h U_u + b_u), sigmoid(x_t W_r + h U_r + b_r)
        c    = tanh(x_t W_c + r * (h U_c + d_c) + b_c)
        h_t  = (1 - s_t u) h + s_t u c,   s_t = a_t with attention, else 1

    The reset gate acts on `h U_c + d_c`, as in cuDNN and Keras, not on h, which takes one matrix product per step. A
    single product with the inputs serves all steps. The steps are unrolled, so the graph grows with L; for the
    histories of click models (tens of inputs) this is faster than a loop.

    Args:
      inputs: x, float32[N, n].
      packed: the order of the N inputs.
      units: width of the state, which starts at 0.
      attention: a, float32[N, 1]; None for a plain GRU.
      name: name of the variable scope.

    Returns:
      float32[N, units], the state after each input; `packed.last` returns the state after a whole history.

    Source: Cho et al., Learning Phrase Representations, EMNLP 2014, section 2.3; Zhou et al., Deep Interest Evolution
    Network for Click-Through Rate Prediction, AAAI 2019, section 3.4.
    """
    width, length = inputs.shape.as_list()[1], packed.sizes.shape.as_list()[0]
    with tf1.variable_scope(name):
        # Three concatenated kernels, each with its own fan-in and fan-out.
        kernel = glorot("kernel", [width, 3 * units], width, units)
        bias = tf1.get_variable("bias", [3 * units], initializer=tf1.zeros_initializer())
        recurrent = glorot("recurrent_kernel", [units, 3 * units], units, units)
        recurrent_bias = tf1.get_variable("recurrent_bias", [3 * units], initializer=tf1.zeros_initializer())
    projected = tf.split(tf.nn.bias_add(tf.matmul(inputs, kernel), bias), [2 * units, units], 1)
    gates_of_inputs, candidates_of_inputs = (tf.split(each, packed.sizes, num=length) for each in projected)
    scales = None if attention is None else tf.split(attention, packed.sizes, num=length)
    state = tf.zeros_like(candidates_of_inputs[0])
    states: list[tf.Tensor] = []
    for step in range(length):
        if states:
            state = states[-1][: packed.sizes[step]]
        of_state = tf.nn.bias_add(tf.matmul(state, recurrent), recurrent_bias)
        gates_of_state, candidate_of_state = tf.split(of_state, [2 * units, units], 1)
        update, reset = tf.split(tf.sigmoid(gates_of_inputs[step] + gates_of_state), 2, 1)
        candidate = tf.tanh(candidates_of_inputs[step] + reset * candidate_of_state)
        update = update if scales is None else update * scales[step]
        states.append(state + update * (candidate - state))
    return tf.concat(states, 0)


def next_behaviour_loss(states: tf.Tensor, history: tf.Tensor, packed: Packed, weight: tf.Tensor) -> tf.Tensor:
    """Computes `-mean(log sigmoid(<h_t, e_{t+1}>) + log(1 - sigmoid(<h_t, e'_{t+1}>)))`.

    The mean is over all behaviours t that are followed by another one.

    e' is a negative: the behaviour at the same position in the history of the previous example in the batch (for the
    first example, of the last example). If that history is shorter, or that example has no weight, as padding and the
    examples that negative sampling drops, there is no e', and t does not count.

    Args:
      states: h, float32[N, dim], the state after each behaviour, see `Packed`.
      history: e, float32[N, dim].
      packed: the order of the N behaviours.
      weight: float32[B], the weight of each example in the mean.

    Returns:
      scalar; 0 if no t counts.

    Caveat: in a batch of one example, e' is the example's own next behaviour. Shuffle the data, so that the previous
    example is another user's.

    Source: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019, section 3.3.
    """
    first = packed.sizes[0]  # The rows of the later steps follow it.
    steps, examples, following = packed.steps[first:], packed.examples[first:], history[first:]
    starts = tf.gather(packed.starts, steps)
    places = tf.range(first, first + tf.shape(steps)[0]) - starts
    before = tf.gather(states, tf.gather(packed.starts, steps - 1) + places)
    other = tf.math.floormod(examples - 1, tf.shape(packed.lengths)[0])
    is_there = (tf.gather(packed.lengths, other) > steps) & (tf.gather(weight, other) > 0)
    rows = tf.where(is_there, starts + tf.gather(packed.places, other), tf.zeros_like(starts))
    counted = tf.where(is_there, tf.gather(weight, examples), tf.zeros_like(starts, tf.float32))
    happened = tf.reduce_sum(before * following, 1)
    did_not = tf.reduce_sum(before * tf.gather(history, rows), 1)
    losses = tf.nn.softplus(-happened) + tf.nn.softplus(did_not)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))
