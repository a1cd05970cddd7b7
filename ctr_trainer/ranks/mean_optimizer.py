"""Optimizers around an optimizer, whose gradients are means of those within."""

import tensorflow as tf

tf1 = tf.compat.v1


class MeanOptimizer(tf1.train.Optimizer):
    """An optimizer around another one, as `hvd.DistributedOptimizer` is: its gradients are means of the other's.

    A mean comes with the weight that it is of, so that means of means are right however the examples are split:

        mean = sum_i W_i t_i / sum_i W_i, and 0 where all W are 0

    Args:
      optimizer: a `tf.compat.v1.train.Optimizer` with a `weight`.

    Attributes:
      weight: scalar float32, the weights of the examples that the gradients are the mean of; after `compute_gradients`.
    """

    def __init__(self, optimizer):
        super().__init__(use_locking=False, name=type(self).__name__)
        self._optimizer = optimizer
        self.weight = None

    def compute_gradients(self, *args, **kwargs):
        """As `tf.compat.v1.train.Optimizer.compute_gradients`; every pair has a gradient."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        tensors, self.weight = self._mean([gradient for gradient, _ in pairs], self._optimizer.weight)
        return [(tensor, variable) for tensor, (_, variable) in zip(tensors, pairs, strict=True)]

    def apply_gradients(self, *args, **kwargs):
        """Calls the optimizer's own."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def _mean(self, tensors, weight):
        """-> (means, their weight) of tensors and the weight that they are of."""
        raise NotImplementedError(f"{type(self).__name__} must define _mean")


class Fused:
    """Tensors as one vector a dtype, with a weight as its last element; those below 32 bits as float32.

    Args:
      tensors: dense, of static shapes.
    """

    def __init__(self, tensors):
        self._tensors = tensors
        self._by_dtype = {tf.float32: []}  # Also without any tensor, for the weight.
        for place, tensor in enumerate(tensors):
            dtype = tensor.dtype.base_dtype
            self._by_dtype.setdefault(dtype if dtype.size >= 4 else tf.float32, []).append(place)

    def vectors(self, weight):
        """-> by dtype, the vector of all tensors times the weight, which stands behind them."""
        vectors = {}
        for dtype, places in self._by_dtype.items():
            parts = [tf.reshape(tf.cast(self._tensors[place], dtype), [-1]) for place in places]
            # A 1 becomes the weight by the one multiplication that all others need.
            vectors[dtype] = tf.concat([*parts, tf.ones([1], dtype)], 0) * tf.cast(weight, dtype)
        return vectors

    def means(self, vectors):
        """Sums of such vectors -> (tensors, weight): each tensor's mean, and the sum of the weights."""
        means = [None] * len(self._tensors)
        for dtype, vector in vectors.items():
            places = self._by_dtype[dtype]
            sizes = [self._tensors[place].shape.num_elements() for place in places]
            parts = tf.split(vector * tf.math.reciprocal_no_nan(vector[-1]), [*sizes, 1])
            for place, part in zip(places, parts, strict=False):
                like = self._tensors[place]
                means[place] = tf.cast(tf.reshape(part, like.shape), like.dtype)
        return means, vectors[tf.float32][-1]
