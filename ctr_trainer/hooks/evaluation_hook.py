"""Evaluates the model while it trains."""

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook


class EvaluationHook(PeriodicHook):
    """Evaluates after each step that the period says, and at the end; stops training if told to. Every rank takes part.

    Args:
      evaluate: f(session, step) -> whether training is to stop; a collective.
      period, clock: see `PeriodicHook`.
      stop: `StopHook`: a training that a signal stops does not evaluate any more.
    """

    phase, order = "evaluation", Order.EVALUATE

    def __init__(self, evaluate, period, clock=None, stop=None):
        super().__init__(period, clock)
        self._evaluate, self._evaluated, self._stop = evaluate, None, stop

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._evaluated = self.step

    def act(self, run_context):
        if self._evaluate_once(run_context.session):
            run_context.request_stop()

    def end(self, session):
        with self._clock.within(self.phase):
            self._evaluate_once(session)

    def _evaluate_once(self, session):
        if self._evaluated == self.step or (self._stop is not None and self._stop.signal):
            return False
        stop = self._evaluate(session, self.step)
        self._evaluated = self.step
        return stop
