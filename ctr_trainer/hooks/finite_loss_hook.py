"""Ends a training whose loss is not finite."""

import numpy as np
import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.messages.divergence import diverged
from ctr_trainer.ranks import distributed


class FiniteLossHook(StepHook):
    """Raises UserError after a step whose loss is infinite or NaN on this worker.

    Args:
      loss: float tensor.
    """

    order = Order.CHECK

    def __init__(self, loss):
        super().__init__()
        self._arguments = tf.compat.v1.train.SessionRunArgs(loss)

    def before_run(self, run_context):
        return self._arguments

    def after_micro_batch(self, run_context, run_values):
        self._check(run_values.results, self.step + 1)

    def after_step(self, run_context, run_values):
        self._check(run_values.results, self.step)

    def _check(self, loss, step):
        if not np.isfinite(loss).all():
            raise diverged(f"the loss of step {step} is {loss} on rank {distributed.rank()}")
