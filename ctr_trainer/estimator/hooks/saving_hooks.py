"""Hooks that save and evaluate the model while it trains."""

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.ending_hooks import StopHook
from ctr_trainer.estimator.hooks.periods import EverySteps
from ctr_trainer.estimator.hooks.step_hook import Order, PeriodicHook
from ctr_trainer.estimator.saving import Saving
from ctr_trainer.system.measuring.clock import Clock


class CheckpointHook(PeriodicHook):
    """Saves a checkpoint after each step at which the period is due, and at the end.

    All ranks take part, because each rank must first send its updates to the service.
    """

    phase, order = "checkpoint", Order.SAVE

    def __init__(self, saving: Saving, period: EverySteps, clock: Clock | None = None) -> None:
        super().__init__(period, clock)
        self._saving = saving
        self._start: int | None = None

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._start = self.step

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._saving.look()
        super().after_step(run_context, run_values)

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        self._saving.begin(run_context.session, self.step)
        self._period.begin()

    def end(self, session: tf1.Session) -> None:
        with self._clock.within(self.phase):
            if self.step != self._start:
                self._saving(session, self.step)


class EvaluationHook(PeriodicHook):
    """Evaluates after each step at which the period is due, and at the end. Stops training if `evaluate` returns True.

    All ranks take part.

    Args:
      evaluate: f(session, step) -> whether to stop training; a collective.
      stop: once a signal stops the training, the hook no longer evaluates.
    """

    phase, order = "evaluation", Order.EVALUATE

    def __init__(
        self,
        evaluate: Callable[[tf1.Session, int], bool],
        period: EverySteps,
        clock: Clock | None = None,
        stop: StopHook | None = None,
    ) -> None:
        super().__init__(period, clock)
        self._evaluate, self._stop = evaluate, stop
        self._evaluated: int | None = None

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._evaluated = self.step

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        if self._evaluate_once(run_context.session):
            run_context.request_stop()

    def end(self, session: tf1.Session) -> None:
        with self._clock.within(self.phase):
            self._evaluate_once(session)

    def _evaluate_once(self, session: tf1.Session) -> bool:
        if self._evaluated == self.step or (self._stop is not None and self._stop.signal):
            return False
        stop = self._evaluate(session, self.step)
        self._evaluated = self.step
        return stop
