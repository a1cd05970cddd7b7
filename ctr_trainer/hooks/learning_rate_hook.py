"""Logs the learning rate."""

import logging

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook, periodic

_log = logging.getLogger(__name__)


class LearningRateHook(StepHook):
    """Logs `current lr: 0.050000`, after the first step too.

    Args:
      learning_rate: scalar tensor, of the dense variables and scaled by the workers.
      every_n_steps, every_n_secs: exactly one.

    Attributes:
      lr: of the last step; None before the first.
    """

    order = Order.FIGURES

    def __init__(self, learning_rate, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._learning_rate, self.lr = learning_rate, None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)
        self._has_logged = False

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._learning_rate)

    def after_step(self, run_context, run_values):
        self.lr = float(run_values.results)
        is_due = self._timer.should_trigger_for_step(self.step)
        if is_due:
            self._timer.update_last_triggered_step(self.step)
        if is_due or not self._has_logged:
            self._has_logged = True
            _log.info("current lr: %f", run_values.results)
