"""Reductions of sequences that end in padding."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

_FAR_BELOW = -1e9


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Computes `exp(s_t) / sum_u exp(s_u)` over the positions of the last axis whose mask is 1; 0 at the others.

    `scores` is s, float32[..., L]; the shape of `mask`, float32, 0 or 1, broadcasts to it.

    Example:
      >>> masked_softmax(tf.constant([[1.0, 1.0, 9.0]]), tf.constant([[1.0, 1.0, 0.0]])).eval()
      array([[0.5, 0.5, 0. ]], dtype=float32)
    """

    @tf.custom_gradient
    def softmax(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        # TensorFlow's own softmax takes twice as long for rows of tens of scores.
        there = given + (1.0 - mask) * _FAR_BELOW
        powers = tf.exp(there - tf.reduce_max(there, -1, keepdims=True)) * mask
        shares = tf.math.divide_no_nan(powers, tf.reduce_sum(powers, -1, keepdims=True))
        return shares, lambda g: shares * (g - tf.reduce_sum(g * shares, -1, keepdims=True))

    return softmax(scores)


def masked_mean(inputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Averages the vectors of float32[B, L, n] whose mask, float32[B, L], is 1; zeros for an example without any.

    Example:
      >>> masked_mean(tf.constant([[[1.0], [3.0], [9.0]]]), tf.constant([[1.0, 1.0, 0.0]])).eval()
      array([[2.]], dtype=float32)
    """
    total = tf.reduce_sum(inputs * mask[..., None], 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(mask, 1)[:, None])


@dataclasses.dataclass(frozen=True)
class Present:
    """The positions with values in a batch of sequences.

    Computations on packed values skip the padding, which is often more than half of a batch. A layer that compares
    behaviours needs `unpack`.

    Attributes:
      places: int64[N], the indices of the values among the B * L positions, in ascending order.
      examples: int64[N], the example of each value.
      rows: int64[B * L], the number of the value at each position, counted from 1; 0 for padding.
      count: int32[], B.
      length: L.

    Example:
      >>> present = Present.of(tf.constant([[1.0, 0.0], [1.0, 1.0]]))
      >>> present.sum(present.pack(tf.ones([2, 2, 1]))).eval()
      array([[1.],
             [2.]], dtype=float32)
    """

    places: tf.Tensor
    examples: tf.Tensor
    rows: tf.Tensor
    count: tf.Tensor
    length: int

    @classmethod
    def of(cls, mask: tf.Tensor) -> "Present":
        """Returns the positions at which a mask float32[B, L] is 1; it is 0 elsewhere."""
        length = mask.shape.as_list()[1]
        flat = tf.cast(tf.reshape(mask, [-1]), tf.int64)
        places = tf.where(flat > 0)[:, 0]
        rows = tf.cumsum(flat) * flat
        return cls(places=places, examples=places // length, rows=rows, count=tf.shape(mask)[0], length=length)

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Converts float32[B, L, n] to float32[N, n], without the padding."""
        return self._packed(tf.reshape(values, [-1, values.shape.as_list()[2]]))

    def unpack(self, packed: tf.Tensor) -> tf.Tensor:
        """Converts float32[N, n] to float32[B, L, n], with zeros for padding."""
        return tf.reshape(self._unpacked(packed), [-1, self.length, packed.shape.as_list()[1]])

    def repeat(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns float32[N, n] with the vector of each value's example in `vectors`, float32[B, n]."""
        # The gradient of a gather takes three times as long.
        return tf.custom_gradient(lambda given: (tf.gather(given, self.examples), self.sum))(vectors)

    def sum(self, packed: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, n], the sums by example of `packed`, float32[N, n]; zeros for an empty sequence."""
        sums = tf.math.segment_sum(packed, self.examples)
        padded = tf.pad(sums, [[0, self.count - tf.shape(sums)[0]], [0, 0]])
        return tf.ensure_shape(padded, [tf.get_static_value(self.count), packed.shape.as_list()[1]])

    def softmax(self, scores: tf.Tensor) -> tf.Tensor:
        """Returns float32[N, 1], the softmax of `scores`, float32[N, 1], over the values of each example."""
        highest = tf.math.unsorted_segment_max(tf.stop_gradient(scores), self.examples, self.count)
        powers = tf.exp(scores - tf.gather(highest, self.examples))
        return powers / self.repeat(self.sum(powers))

    # Packing and unpacking are each other's gradients, and both are gathers.

    def _packed(self, values: tf.Tensor) -> tf.Tensor:
        return tf.custom_gradient(lambda given: (tf.gather(given, self.places), self._unpacked))(values)

    def _unpacked(self, packed: tf.Tensor) -> tf.Tensor:
        return tf.custom_gradient(lambda given: (tf.gather(tf.pad(given, [[1, 0], [0, 0]]), self.rows), self._packed))(
            packed
        )
