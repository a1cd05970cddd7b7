"""Stops a training that was asked to by a signal."""

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook


class StopHook(StepHook):
    """Stops after the same step on all ranks once one of them got SIGTERM or SIGINT; then the checkpoint is saved.

    Between its session's start and its end a first signal asks for that; before and after, it ends the process at once.

    Args:
      stopping: `Stopping` of the training.
      signals: `StopSignals` of the process.
      grace_secs: seconds after which the process ends all the same.

    Attributes:
      signal: number of the signal that the training stops for, after the step done last; 0 for none. The same on all
        ranks.
      asked: the ranks that got it.
    """

    order = Order.STOP

    def __init__(self, stopping, signals, grace_secs):
        super().__init__()
        self._stopping, self._signals, self._grace_secs = stopping, signals, grace_secs
        self.signal, self.asked = 0, []

    @property
    def is_asked(self):
        """Whether this rank knows already that the training is to stop; another one may know it a moment later."""
        return self._stopping.is_asked

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._stopping.begin(self.step + 1)
        self._signals.hand_to(self._stopping, self._grace_secs)

    def after_step(self, run_context, run_values):
        if self._stopping.done(self.step):
            self._stop()
            run_context.request_stop()

    def end(self, session):
        if self._stopping.leave():  # Also if the last step of the training was done meanwhile.
            self._stop()
        self._signals.keep()

    def close(self):
        """Ends what `after_create_session` has begun, after an error."""
        self._stopping.close()
        self._signals.keep()

    def _stop(self):
        self.signal, self.asked = self._stopping.signal, self._stopping.asked
