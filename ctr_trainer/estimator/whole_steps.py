"""Batches for optimizer steps that each take several."""

import dataclasses

import numpy as np


class WholeSteps:
    """A reader's batches, then, where the last optimizer step is short of some, as many of weight zero.

    So the last examples are trained on although they do not fill a step. All ranks have as many batches, so they fill
    up alike. The batches added are the last one over again: they look up no row that the step has not.

    Args:
      batches: iterable of `Batch`.
      batches_per_step: of an optimizer step.
    """

    def __init__(self, batches, batches_per_step):
        self._batches, self._per_step = batches, batches_per_step
        self._count = None

    def __iter__(self):
        count, last = 0, None
        for last in self._batches:
            count += 1
            yield last
        self._count = count
        for _ in range(-count % self._per_step):
            yield dataclasses.replace(last, size=0, weights=np.zeros_like(last.weights))

    def taken_by(self, steps):
        """-> how many of the reader's own batches were in the first `steps` steps."""
        batches = steps * self._per_step
        return batches if self._count is None else min(batches, self._count)
