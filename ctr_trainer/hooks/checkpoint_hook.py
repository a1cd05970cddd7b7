"""Saves both halves of the model while it trains."""

import logging

from ctr_trainer.hooks.step_hook import StepHook

_log = logging.getLogger(__name__)


class CheckpointHook(StepHook):
    """Saves after each step that the period says, and at the end.

    Every rank takes part, since all of them must have handed their updates to the service first.

    Args:
      save: f(session, step) -> the path written; a collective.
      period: `EverySteps` or another of `periods`.
    """

    phase = "checkpoint"

    def __init__(self, save, period):
        super().__init__()
        self._save, self._period = save, period
        self._saved = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._saved = self.step
        self._period.begin()

    def after_step(self, run_context, run_values):
        if self._period.is_due(self.step):
            self._save_once(run_context.session)

    def end(self, session):
        self._save_once(session)

    def _save_once(self, session):
        if self._saved != self.step:
            path = self._save(session, self.step)
            self._saved = self.step
            self._period.begin()
            _log.info("saved the checkpoint of step %d: %s", self.step, path)
