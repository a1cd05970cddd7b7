"""One optimizer step of a worker's embedding rows, and what a gradient counts for in it."""

import dataclasses

import numpy as np

# A factor nearer to 1 than float32 can tell is not worth a pass over the gradients.
_NO_FACTOR = 1e-7


@dataclasses.dataclass(frozen=True)
class RowStep:
    """One optimizer step of the rows that a worker's micro-batches looked up.

    Attributes:
      learning_rate: a float, one worker's.
      share: see `weighed`.
    """

    learning_rate: float
    share: float = 1.0


def weighed(gradient, weight, share, merge_factor):
    """-> float32 array, what a micro-batch's gradient adds to the step of its rows:

        merge_factor * share * weight * gradient

    Args:
      gradient: float32 array, of the mean loss of the micro-batch's examples.
      weight: sum of the example weights of the micro-batch; 1 if it is the whole step of a worker.
      share: workers / sum of the example weights of the step over all its micro-batches and workers; if the workers do
        not exchange gradients in each step, 1 / sum of this worker's weights; 1 if the micro-batch is the whole step.
      merge_factor: of `merging.gradient_factor`, what one worker's gradient counts for among those of all.
    """
    return times(gradient, merge_factor * share * weight)


def times(gradient, factor):
    """-> float32 array, `factor` * gradient."""
    return gradient if abs(factor - 1) <= _NO_FACTOR else gradient * np.float32(factor)
