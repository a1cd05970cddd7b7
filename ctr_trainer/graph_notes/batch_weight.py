"""The weight of a batch among the batches of all workers in a step."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.graph_notes.notes import BatchWeight, notes


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

    def __init__(
        self, inner: tf1.train.Optimizer, weight: BatchWeight, local: Sequence[tf.Tensor] = (), workers: int = 1
    ) -> None:
        super().__init__(use_locking=False, name=f"Weighed{inner.get_name()}")
        self._inner, self._weight = inner, weight
        self._local, self._workers = {id(tensor) for tensor in local}, workers

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        notes().weighs_batches = True
        return [
            (None if gradient is None else self._weighed(gradient, variable), variable)
            for gradient, variable in self._inner.compute_gradients(*args, **kwargs)
        ]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> tf.Operation:
        return self._inner.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> tf.Variable | None:
        return self._inner.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        return self._inner.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        return self._inner.variables()

    def _weighed(self, gradient: tf.Tensor | tf.IndexedSlices, variable: Any) -> tf.Tensor | tf.IndexedSlices:
        return share_of(gradient, self._weight, self._workers if id(variable) in self._local else 1)


def share_of(
    gradient: tf.Tensor | tf.IndexedSlices, weight: BatchWeight, times: int = 1
) -> tf.Tensor | tf.IndexedSlices:
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
