"""Optimizers that wrap another optimizer, and whose gradients are means over the workers."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import Exchange, sum_of_host, sum_of_hosts


def share_of(
    gradient: tf.Tensor | tf.IndexedSlices, weight: tf.Tensor, total: tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    """Computes weight / total * gradient, where `weight` is this worker's part of all examples, `total`.

    If the batch is only padding, the result is 0 even if the gradient is not finite. `tf.IndexedSlices` then have no
    rows, because some optimizers update a row by its momentum even if its gradient is 0.
    """
    factor = tf.cast(tf.math.divide_no_nan(weight, total), gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.where(weight > 0, tf.shape(gradient.indices)[0], 0)
        return tf.IndexedSlices(gradient.values[:rows] * factor, gradient.indices[:rows], gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, factor)


class MeanOptimizer(tf1.train.Optimizer):
    """An optimizer that wraps another optimizer, and whose gradients are means of the inner gradients.

    Each mean has the sum of its weights, so that means of means are correct for any split of the examples:

        mean = sum_i W_i t_i / sum_i W_i, and 0 if all W are 0

    Args:
      optimizer: a `tf.compat.v1.train.Optimizer` with an attribute `weight`.

    Attributes:
      weight: scalar float32, the sum of the weights of the examples; set by `compute_gradients`.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(use_locking=False, name=type(self).__name__)
        self._optimizer = optimizer
        self.weight: tf.Tensor = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor, Any]]:
        """Computes gradients like `tf.compat.v1.train.Optimizer.compute_gradients`; no gradient is None."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        tensors, self.weight = self._mean([gradient for gradient, _ in pairs], self._optimizer.weight)
        return [(tensor, variable) for tensor, (_, variable) in zip(tensors, pairs, strict=True)]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> tf.Operation:
        """Calls `apply_gradients` of the inner optimizer."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def _mean(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the means of the tensors and the sum of the weights; `weight` is the weight of these tensors."""
        raise NotImplementedError(f"{type(self).__name__} must define _mean")


class Fused:
    """Tensors fused into one vector per dtype, with a weight as its last element.

    Tensors with less than 32 bits per element are converted to float32.

    Args:
      tensors: list of dense tensors with static shapes.
    """

    def __init__(self, tensors: list[tf.Tensor]) -> None:
        self._tensors = tensors
        self._by_dtype: dict[tf.DType, list[int]] = {tf.float32: []}  # Always present, for the weight.
        for place, tensor in enumerate(tensors):
            dtype = tensor.dtype.base_dtype
            self._by_dtype.setdefault(dtype if dtype.size >= 4 else tf.float32, []).append(place)

    def vectors(self, weight: tf.Tensor | float) -> dict[tf.DType, tf.Tensor]:
        """Returns, for each dtype, a vector of all its tensors times the weight, with the weight as last element."""
        vectors = {}
        for dtype, places in self._by_dtype.items():
            parts = [tf.reshape(tf.cast(self._tensors[place], dtype), [-1]) for place in places]
            # The 1 at the end becomes the weight by the same multiplication.
            vectors[dtype] = tf.concat([*parts, tf.ones([1], dtype)], 0) * tf.cast(weight, dtype)
        return vectors

    def means_over_ranks(
        self, weight: tf.Tensor | float, name: str, add_up: Callable[[tf.Tensor, str], tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns each tensor's mean over all workers, and the sum of their weights. A collective.

        Args:
          weight: the weight of this worker's tensors.
          add_up: f(vector, name) -> the sum of all workers' vectors. A collective.
        """
        sums: dict[tf.DType, tf.Tensor] = {}
        for dtype, vector in self.vectors(weight).items():
            # Without a fixed order, a session with one thread could wait in one sum, and another rank in another sum.
            with tf.control_dependencies(list(sums.values())):
                sums[dtype] = add_up(vector, f"{name}.{dtype.name}")
        return self.means(sums)

    def means(self, vectors: dict[tf.DType, tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns each tensor's mean and the sum of the weights, given the sums of all workers' `vectors`."""
        means: list[tf.Tensor] = [None] * len(self._tensors)
        for dtype, vector in vectors.items():
            places = self._by_dtype[dtype]
            sizes = [self._tensors[place].shape.num_elements() for place in places]
            parts = tf.split(vector * tf.math.reciprocal_no_nan(vector[-1]), [*sizes, 1])
            for place, part in zip(places, parts, strict=False):
                like = self._tensors[place]
                means[place] = tf.cast(tf.reshape(part, like.shape), like.dtype)
        return means, vectors[tf.float32][-1]


def mean_over_ranks(inner: Any, exchange: Exchange, fp16: bool = False) -> MeanOptimizer:
    """Makes an optimizer whose gradients are means over all workers, weighted by the workers' examples.

    Args:
      fp16: whether Horovod sends float16; the sum is then in float16 as well.
    """
    if exchange.way == "horovod":
        return HorovodOptimizer(inner, fp16)
    return HostSumOptimizer(inner, sum_of_host if exchange.is_in_memory else sum_of_hosts)


class HorovodOptimizer(MeanOptimizer):
    """Multiplies gradients by this worker's share of the examples, and sums them by `hvd.DistributedOptimizer`.

    Each gradient is reduced separately, as soon as the backward pass has computed it. Horovod fuses gradients that are
    ready at the same time.
    """

    def __init__(self, inner: Any, fp16: bool = False) -> None:
        self._of_examples = _ShareOfExamples(inner)
        super().__init__(distributed.optimizer(self._of_examples, fp16=fp16, op="sum"))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor, Any]]:
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        self.weight = self._of_examples.weight
        return pairs[:-1]


class _ShareOfExamples(MeanOptimizer):
    """Multiplies gradients by this worker's share of all workers' examples; the last pair is the share itself."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor, Any]]:
        pairs = super().compute_gradients(*args, **kwargs)
        return [*pairs, (self._share, self._share)]  # `hvd.DistributedOptimizer` requires at least one pair.

    def _mean(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.name_scope("dense_exchange"):
            total = distributed.allreduce(weight, "examples")
            self._share = tf.math.divide_no_nan(weight, total)
            return [share_of(tensor, weight, total) for tensor in tensors], total


class HostSumOptimizer(MeanOptimizer):
    """Like `HorovodOptimizer`, but sums in memory that the workers of one host share, see `HostSum`.

    All tensors of a dtype are one vector, with the weight as its last element, so each step computes one sum per dtype.
    With several hosts, Horovod adds up one vector per host, for any number of workers on it.
    """

    def __init__(self, inner: Any, add_up: Callable[[tf.Tensor, str], tf.Tensor]) -> None:
        super().__init__(inner)
        self._add_up = add_up

    def _mean(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.name_scope("dense_exchange"):
            return Fused(tensors).means_over_ranks(weight, "dense_gradients", self._add_up)


def average_of_ranks(variables: list[tf.Variable], name: str, in_memory: bool) -> tf.Operation:
    """Returns the operation that sets float variables to their mean over the ranks. A collective.

    Args:
      name: name of the reduction, the same on every rank.
      in_memory: whether all ranks share the memory of one host; otherwise Horovod sums.
    """
    with tf.name_scope("dense_exchange"):
        fused = Fused([variable.read_value() for variable in variables])
        means, _ = fused.means_over_ranks(1.0, name, sum_of_host if in_memory else distributed.allreduce)
        return tf.group(*(v.assign(mean, read_value=False) for v, mean in zip(variables, means, strict=True)))
