"""Evaluates the model while it trains."""

import time

from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.measuring.phases import Phases


class EvaluationHook(StepHook):
    """Evaluates after each step that the period says, and at the end; stops training if told to.

    This hook must come after those that train, sync and save. Every rank takes part.

    Args:
      evaluate: f(session, step) -> whether training is to stop; a collective.
      period: `EverySteps` or `EveryEpochs`.
      timed: hooks with `exclude(seconds)`, whose rates an evaluation is not to lower.
      phases: `Phases` of the training thread; None where nobody looks at them.

    Attributes:
      seconds: that evaluations have taken.
    """

    phase = "evaluation"

    def __init__(self, evaluate, period, timed=(), phases=None):
        super().__init__()
        evaluate = (phases or Phases()).timed("evaluation", evaluate)
        self._evaluate, self._period, self._timed = evaluate, period, timed
        self._evaluated = None
        self.seconds = 0.0

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._evaluated = self.step

    def after_step(self, run_context, run_values):
        if self._period.is_due(self.step) and self._evaluate_once(run_context.session):
            run_context.request_stop()

    def end(self, session):
        self._evaluate_once(session)

    def _evaluate_once(self, session):
        if self._evaluated == self.step:
            return False
        began = time.perf_counter()
        stop = self._evaluate(session, self.step)
        self._evaluated = self.step
        seconds = time.perf_counter() - began
        self.seconds += seconds
        for hook in self._timed:
            hook.exclude(seconds)
        return stop
