"""Reductions of sequences that end in padding."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

_FAR_BELOW = -1e9


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Computes `exp(s_t) / sum_u exp(s_u)` over the positions of the last axis whose mask is 1.

    Args:
      scores: s, float32[..., L].
      mask: float32, 0 or 1, of a shape that broadcasts to the scores'.

    Returns:
      float32[..., L]; 0 at positions of mask 0.

    Advice: give it scores as they are: it takes the largest off, so none overflows.

    Example:
      >>> masked_softmax(tf.constant([[1.0, 1.0, 9.0]]), tf.constant([[1.0, 1.0, 0.0]])).eval()
      array([[0.5, 0.5, 0. ]], dtype=float32)
    """

    @tf.custom_gradient
    def softmax(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        # TensorFlow's own softmax takes twice as long for rows of some tens.
        there = given + (1.0 - mask) * _FAR_BELOW
        powers = tf.exp(there - tf.reduce_max(there, -1, keepdims=True)) * mask
        shares = tf.math.divide_no_nan(powers, tf.reduce_sum(powers, -1, keepdims=True))
        return shares, lambda g: shares * (g - tf.reduce_sum(g * shares, -1, keepdims=True))

    return softmax(scores)


def masked_mean(inputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Averages the vectors whose mask is 1.

    Args:
      inputs: float32[B, L, n].
      mask: float32[B, L], 0 or 1.

    Returns:
      float32[B, n]; zeros for an example without a vector of mask 1.

    Advice: the first thing to try for a history, before any attention.

    Example:
      >>> masked_mean(tf.constant([[[1.0], [3.0], [9.0]]]), tf.constant([[1.0, 1.0, 0.0]])).eval()
      array([[2.]], dtype=float32)
    """
    total = tf.reduce_sum(inputs * mask[..., None], 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(mask, 1)[:, None])


@dataclasses.dataclass(frozen=True)
class Present:
    """The positions of a batch of sequences that hold a value.

    What is computed for each of them by `pack` costs nothing for padding, which often is more than half of a batch.

    Attributes:
      places: int64[N], the places of the values among the B * L positions; they rise.
      examples: int64[N], the example of each value.
      rows: int64[B * L], for each position the number of its value, from 1 on; 0 for padding.
      count: int32[], B.
      length: L.

    Advice: take it for what is computed for each behaviour alone; what compares behaviours needs `unpack`.

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
        """Returns the positions of float32[B, L] that are 1; the others are 0."""
        length = mask.shape.as_list()[1]
        flat = tf.cast(tf.reshape(mask, [-1]), tf.int64)
        places = tf.where(flat > 0)[:, 0]
        rows = tf.cumsum(flat) * flat
        return cls(places=places, examples=places // length, rows=rows, count=tf.shape(mask)[0], length=length)

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Returns float32[N, n], the values of float32[B, L, n], one after another."""
        return self._packed(tf.reshape(values, [-1, values.shape.as_list()[2]]))

    def unpack(self, packed: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, L, n] of float32[N, n], with zeros for padding."""
        return tf.reshape(self._unpacked(packed), [-1, self.length, packed.shape.as_list()[1]])

    def repeat(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns float32[N, n], for each value the vector of its example in float32[B, n]."""

        @tf.custom_gradient
        def repeat(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return tf.gather(given, self.examples), self.sum  # The gradient of a gather takes thrice as long.

        return repeat(vectors)

    def sum(self, packed: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, n], the sum of each example's vectors in float32[N, n]; zeros for an empty sequence."""
        sums = tf.math.segment_sum(packed, self.examples)
        padded = tf.pad(sums, [[0, self.count - tf.shape(sums)[0]], [0, 0]])
        return tf.ensure_shape(padded, [tf.get_static_value(self.count), packed.shape.as_list()[1]])

    def softmax(self, scores: tf.Tensor) -> tf.Tensor:
        """Returns float32[N, 1], the softmax over each example's values of float32[N, 1]."""
        highest = tf.math.unsorted_segment_max(tf.stop_gradient(scores), self.examples, self.count)
        powers = tf.exp(scores - tf.gather(highest, self.examples))
        return powers / self.repeat(self.sum(powers))

    # Packing and unpacking are each other's gradients, and both are gathers.

    def _packed(self, values: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def pack(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return tf.gather(given, self.places), self._unpacked

        return pack(values)

    def _unpacked(self, packed: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def unpack(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return tf.gather(tf.pad(given, [[1, 0], [0, 0]]), self.rows), self._packed

        return unpack(packed)
