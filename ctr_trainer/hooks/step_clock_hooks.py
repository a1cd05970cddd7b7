"""Tell the clock when a step begins, when its session runs, and when it has ended."""

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook


class StepClockHook(StepHook):
    """The first of all hooks: begins a step, ends its session run, and measures the whole run.

    Args:
      clock: `Clock` of the thread of the steps.

    Attributes:
      steps: done in this run.
      seconds: that they took, up to the end of the last one's session run, with syncs and checkpoints but without
        start-up and evaluations.
    """

    order = Order.CLOCK

    def __init__(self, clock):
        super().__init__()
        self._clock = clock
        self.steps, self.seconds = 0, 0.0

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._clock.step = self.step

    def before_run(self, run_context):
        self._clock.step = self.step + 1
        self._clock.enter("hooks")

    def after_micro_batch(self, run_context, run_values):
        self._clock.enter("hooks")

    def after_step(self, run_context, run_values):
        self._clock.enter("hooks")
        self.steps += 1
        self.seconds = self._clock.training_seconds()


class SessionClockHook(tf.compat.v1.train.SessionRunHook):
    """The last of all hooks: before a run the session's time begins, after it that of the loop.

    Args:
      clock: `Clock` of the thread of the steps.
    """

    order = Order.SESSION

    def __init__(self, clock):
        self._clock = clock

    def before_run(self, run_context):
        self._clock.enter("session")

    def after_run(self, run_context, run_values):
        self._clock.enter("loop")
