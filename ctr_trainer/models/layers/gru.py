"""Recurrent networks over a short history: GRU, AUGRU, and the auxiliary loss of DIEN."""

import dataclasses

import tensorflow as tf

from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


def gru(
    inputs: tf.Tensor, mask: tf.Tensor, units: int, attention: tf.Tensor | None = None, name: str = "gru"
) -> tf.Tensor:
    """Runs gated recurrent units over a history, from left to right; with `attention`, DIEN's AUGRU.

        u, r = sigmoid(x_t W_u + h U_u + b_u), sigmoid(x_t W_r + h U_r + b_r)
        c    = tanh(x_t W_c + r * (h U_c + d_c) + b_c)
        h_t  = (1 - s_t u) h + s_t u c,   s_t = mask_t, times a_t with attention

    Padding and inputs with attention 0 do not change the state. The reset gate acts on `h U_c + d_c`, as in cuDNN and
    Keras, not on h, which takes one matrix product per step. A single product with the inputs serves all steps. The
    steps are unrolled, so the graph grows with L; for the histories of click models (tens of inputs) this is faster
    than a loop.

    Args:
      inputs: x, float32[B, L, n].
      mask: float32[B, L], 1 for an input and 0 for the padding at the end.
      units: width of the state, which starts at 0.
      attention: a, float32[B, L]; None for a plain GRU.
      name: name of the variable scope.

    Returns:
      float32[B, L, units], the state after each step. The state at the last position is the state after the whole
      history, also if the position is padding.

    Advice: limit histories to the newest tens of inputs, because the steps are sequential and each is a matrix product.

    Example:
      >>> states = gru(tf.ones([2, 5, 4]), tf.ones([2, 5]), units=3)
      >>> states[:, -1].shape  # After the whole history.
      TensorShape([2, 3])

    Source: Cho et al., Learning Phrase Representations, EMNLP 2014, section 2.3; Zhou et al., Deep Interest Evolution
    Network for Click-Through Rate Prediction, AAAI 2019, section 3.4.
    """
    packed = Packed.of(mask)
    scales = None if attention is None else packed.pack(attention[..., None])
    return packed.unpack(gru_of_packed(packed.pack(inputs), packed, units, scales, name))


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

    Advice: use it for recurrent networks; `Present` keeps the values of an example together.

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

    def unpack(self, states: tf.Tensor) -> tf.Tensor:
        """Converts float32[N, n] to float32[B, L, n]; padding repeats the last vector, or is 0 in an empty history."""
        number = tf.range(self.sizes.shape.as_list()[0])
        return self._at(states, tf.minimum(number[None], self.lengths[:, None] - 1), self.places[:, None])

    def last(self, states: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, n], the last vector of each history in float32[N, n]; zeros for an empty history."""
        return self._at(states, self.lengths - 1, self.places)

    def softmax(self, scores: tf.Tensor) -> tf.Tensor:
        """Computes the softmax over each history of float32[N]."""
        count = tf.shape(self.lengths)[0]
        highest = tf.stop_gradient(tf.math.unsorted_segment_max(scores, self.examples, count))
        powers = tf.exp(scores - tf.gather(highest, self.examples))
        return powers / tf.gather(tf.math.unsorted_segment_sum(powers, self.examples, count), self.examples)

    def _at(self, states: tf.Tensor, steps: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Gathers rows by step and place; zeros for steps below 0."""
        rows = tf.gather(self.starts, tf.maximum(steps, 0)) + places + 1
        with_zeros = tf.pad(states, [[1, 0], [0, 0]])
        return tf.gather(with_zeros, tf.where(steps < 0, tf.zeros_like(rows), rows))


def gru_of_packed(
    inputs: tf.Tensor, packed: Packed, units: int, attention: tf.Tensor | None = None, name: str = "gru"
) -> tf.Tensor:
    """Runs `gru` over packed inputs, without any computation for padding.

    Args:
      inputs: x, float32[N, n].
      packed: the order of the inputs.
      units, name: see `gru`.
      attention: a, float32[N, 1]; None for a plain GRU.

    Returns:
      float32[N, units], the state after each input.

    Advice: use it if the next layer needs no states at padding; `packed.last` returns the state after a whole history.

    Example:
      >>> packed = Packed.of(tf.constant([[1.0, 0.0], [1.0, 1.0]]))
      >>> gru_of_packed(packed.pack(tf.ones([2, 2, 4])), packed, units=3).shape
      TensorShape([3, 3])
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
    first example, of the last example). If that history is shorter, there is no e', and t does not count.

    Args:
      states: h, float32[N, dim], the state after each behaviour, see `Packed`.
      history: e, float32[N, dim].
      packed: the order of the N behaviours.
      weight: float32[B], the weight of each example in the mean.

    Returns:
      scalar; 0 if no t counts.

    Caveat: in a batch of one example, e' is the example's own next behaviour.

    Advice: shuffle the data, because the negatives are taken from the previous example of the batch.

    Example:
      >>> packed = Packed.of(tf.ones([2, 5]))
      >>> next_behaviour_loss(tf.ones([10, 4]), tf.ones([10, 4]), packed, tf.ones([2])).shape
      TensorShape([])

    Source: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019, section 3.3.
    """
    first = packed.sizes[0]  # The rows of the later steps follow it.
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
