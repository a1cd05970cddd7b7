"""The weight of a batch among the batches of all workers in a step."""

import dataclasses
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "batch weight")  # No strings, so that TensorFlow does not try to serialize what is under them.
_HEEDED = ("ctr_trainer", "optimizers that weigh batches")


@dataclasses.dataclass(frozen=True)
class BatchWeight:
    """The weight of this worker's batch, in examples; a batch of padding only has the weight 0.

    Attributes:
      own: scalar float32, the weight of this worker's batch.
      total: scalar float32, the sum of the weights of all workers' batches in this step.
    """

    own: Any
    total: Any


class WeighedOptimizer(tf1.train.Optimizer):
    """An optimizer that multiplies its gradients by the share of this worker's batch in the examples of the step.

        W_r / sum_s W_s * g_r

    g_r is the gradient of the loss averaged over worker r's W_r examples. The sum of these products over the workers r
    is the gradient of the loss averaged over all examples. A batch of padding only has the gradient 0, even if g_r is
    not finite; if the gradient is sparse, it then has no row.

    Args:
      inner: the optimizer that applies the gradients.
      weight: `BatchWeight`.
      local: tensors whose gradients are not summed over the workers. These gradients are multiplied by `workers` as
        well, so that their mean over the workers is the sum above.
      workers: number of workers.
    """

    def __init__(self, inner, weight, local=(), workers=1):
        super().__init__(use_locking=False, name=f"Weighed{inner.get_name()}")
        self._inner, self._weight = inner, weight
        self._local, self._workers = {id(tensor) for tensor in local}, workers

    def compute_gradients(self, *args, **kwargs):
        heed()
        return [
            (None if gradient is None else self._weighed(gradient, variable), variable)
            for gradient, variable in self._inner.compute_gradients(*args, **kwargs)
        ]

    def apply_gradients(self, *args, **kwargs):
        return self._inner.apply_gradients(*args, **kwargs)

    def get_slot(self, *args, **kwargs):
        return self._inner.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._inner.get_slot_names(*args, **kwargs)

    def variables(self):
        return self._inner.variables()

    def _weighed(self, gradient, variable):
        return share_of(gradient, self._weight, self._workers if id(variable) in self._local else 1)


def share_of(gradient, weight, times=1):
    """Computes W_r / sum_s W_s * times * gradient; 0 for a batch of padding only, even if the gradient is not finite.

    Args:
      gradient: tensor or `tf.IndexedSlices`. For a batch of padding only, the latter have no row in the result: some
        optimizers step a row by its momentum even if its gradient is 0.
      weight: `BatchWeight`.
      times: a further factor.

    Returns:
      tensor or `tf.IndexedSlices`, as `gradient`.
    """
    factor = tf.cast(tf.math.divide_no_nan(weight.own, weight.total) * times, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.where(weight.own > 0, tf.shape(gradient.indices)[0], 0)
        return tf.IndexedSlices(gradient.values[:rows] * factor, gradient.indices[:rows], gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, factor)


def record(weight):
    """Keeps the `BatchWeight` of the current graph's steps."""
    tf1.add_to_collection(_KEY, weight)


def current():
    """-> the `BatchWeight` of the current graph; None if all workers' batches count alike."""
    weights = tf1.get_collection(_KEY)
    return weights[0] if weights else None


def heed():
    """Records that the optimizer of the current graph weighs its batches."""
    tf1.add_to_collection(_HEEDED, True)


def is_heeded():
    """-> whether an optimizer of the current graph weighs its batches."""
    return bool(tf1.get_collection(_HEEDED))
