"""Takes all workers back together when one has lost the lookup service."""

import numpy as np

from ctr_trainer import distributed
from ctr_trainer.errors import ServiceLost
from ctr_trainer.hooks.step_hook import StepHook


class ServiceLossHook(StepHook):
    """After every step whose number divides by `every_n_steps`, all ranks raise ServiceLost if one has lost it.

    Args:
      guard: the `Guard` around the service.
      every_n_steps: at least 1; each time costs a reduction of one number.
    """

    phase = "sync"

    def __init__(self, guard, every_n_steps):
        super().__init__()
        self._guard, self._every_n_steps = guard, every_n_steps

    def after_step(self, run_context, run_values):
        if self.step % self._every_n_steps == 0:
            raise_together(self._guard)


def raise_together(guard):
    """Raises ServiceLost on every rank where it was met on one. A collective."""
    lost = distributed.all_sum(np.int32(guard.lost is not None), "service_lost")
    if lost:
        raise guard.lost or ServiceLost(f"{lost} of {distributed.size()} workers lost the embedding service")
