"""Looks at the memory of this worker, and at its GPU."""

import numpy as np

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook, periodic
from ctr_trainer.measuring.resources import resident_bytes


class ResourcesHook(StepHook):
    """Keeps the most memory that was resident, and of the GPU how busy it was on average and its most memory in use.

    Args:
      gpu: `resources.Gpu` or `NoGpu`.
      every_n_steps, every_n_secs: exactly one; between two looks. There is one more at the end.

    Attributes:
      resident_bytes: of this process, the most at a look.
      gpu_busy: share of the time, the mean over the looks; NaN without a GPU.
      gpu_bytes: of the GPU's memory, the most at a look; NaN without a GPU.
    """

    order = Order.WATCH

    def __init__(self, gpu, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._gpu, self._busy = gpu, []
        self.resident_bytes, self.gpu_bytes = 0, np.nan

    @property
    def gpu_busy(self):
        return float(np.mean(self._busy)) if self._busy else np.nan

    def after_step(self, run_context, run_values):
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._look()

    def end(self, session):
        self._look()

    def _look(self):
        self.resident_bytes = max(self.resident_bytes, resident_bytes())
        if (seen := self._gpu.read()) is not None:
            self._busy.append(seen[0])
            self.gpu_bytes = float(np.fmax(self.gpu_bytes, seen[1]))
