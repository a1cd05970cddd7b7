"""Optimizers around another optimizer, whose gradients are means of the inner one's."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1


class MeanOptimizer(tf1.train.Optimizer):
    """An optimizer around another one, as `hvd.DistributedOptimizer` is: its gradients are means of the other's.

    Each mean comes with the sum of the weights that it is of. So means of means are right however the examples are
    split:

        mean = sum_i W_i t_i / sum_i W_i, and 0 if all W are 0

    Args:
      optimizer: a `tf.compat.v1.train.Optimizer` with a `weight`.

    Attributes:
      weight: scalar float32, the sum of the weights of the examples that the gradients are the mean of; set by
        `compute_gradients`.
    """

    def __init__(self, optimizer):
        super().__init__(use_locking=False, name=type(self).__name__)
        self._optimizer = optimizer
        self.weight = None

    def compute_gradients(self, *args, **kwargs):
        """Does as `tf.compat.v1.train.Optimizer.compute_gradients`; every pair has a gradient."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        tensors, self.weight = self._mean([gradient for gradient, _ in pairs], self._optimizer.weight)
        return [(tensor, variable) for tensor, (_, variable) in zip(tensors, pairs, strict=True)]

    def apply_gradients(self, *args, **kwargs):
        """Calls `apply_gradients` of the inner optimizer."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def _mean(self, tensors, weight):
        """-> (means of the tensors, sum of the weights), given tensors and the weight that they are of."""
        raise NotImplementedError(f"{type(self).__name__} must define _mean")


class Fused:
    """Tensors fused into one vector per dtype, with a weight as its last element.

    Tensors of less than 32 bits per element become float32.

    Args:
      tensors: list of dense tensors of static shapes.
    """

    def __init__(self, tensors):
        self._tensors = tensors
        self._by_dtype = {tf.float32: []}  # Even if no tensor is float32: the weight is.
        for place, tensor in enumerate(tensors):
            dtype = tensor.dtype.base_dtype
            self._by_dtype.setdefault(dtype if dtype.size >= 4 else tf.float32, []).append(place)

    def vectors(self, weight):
        """-> dict of dtype -> vector: all tensors of the dtype times the weight, then the weight."""
        vectors = {}
        for dtype, places in self._by_dtype.items():
            parts = [tf.reshape(tf.cast(self._tensors[place], dtype), [-1]) for place in places]
            # The 1 at the end becomes the weight by the same multiplication.
            vectors[dtype] = tf.concat([*parts, tf.ones([1], dtype)], 0) * tf.cast(weight, dtype)
        return vectors

    def means(self, vectors):
        """Sums over workers of what `vectors` returned -> (each tensor's mean, the sum of the weights)."""
        means = [None] * len(self._tensors)
        for dtype, vector in vectors.items():
            places = self._by_dtype[dtype]
            sizes = [self._tensors[place].shape.num_elements() for place in places]
            parts = tf.split(vector * tf.math.reciprocal_no_nan(vector[-1]), [*sizes, 1])
            for place, part in zip(places, parts, strict=False):
                like = self._tensors[place]
                means[place] = tf.cast(tf.reshape(part, like.shape), like.dtype)
        return means, vectors[tf.float32][-1]
