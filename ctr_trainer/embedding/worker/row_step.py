"""One optimizer step of a worker's embedding rows, and the weight of a gradient in it."""

import dataclasses

import numpy as np

# A factor nearer to 1 than float32 can tell is not worth a pass over the gradients.
_NO_FACTOR = 1e-7


@dataclasses.dataclass(frozen=True)
class RowStep:
    """One optimizer step of the rows that a worker's micro-batches looked up.

    Attributes:
      learning_rate: a float, the rate of one worker.
      share: see `weighed`.
    """

    learning_rate: float
    share: float = 1.0


def weighed(gradient: np.ndarray, weight: float, share: float, merge_factor: float) -> np.ndarray:
    """Computes what the gradient of a micro-batch adds to the step of its rows.

        merge_factor * share * weight * gradient

    Args:
      gradient: float32 array, the gradient of the mean loss of the micro-batch's examples.
      weight: the sum of the micro-batch's example weights; 1 if the micro-batch is the worker's whole step.
      share: workers / sum of the example weights of all micro-batches of the step, of all workers. If the workers do
        not exchange gradients in each step, 1 / sum of this worker's weights. 1 if the micro-batch is the whole step.
      merge_factor: the factor of `merging.gradient_factor` on each worker's gradient.

    Returns:
      float32 array of the gradient's shape.
    """
    return times(gradient, merge_factor * share * weight)


def times(gradient: np.ndarray, factor: float) -> np.ndarray:
    """Returns `factor` * gradient, a float32 array."""
    return gradient if abs(factor - 1) <= _NO_FACTOR else gradient * np.float32(factor)
