"""Saves both halves of the model while it trains."""

import logging

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook

_log = logging.getLogger(__name__)


class CheckpointHook(PeriodicHook):
    """Saves after each step that the period says, and at the end.

    Every rank takes part, since all of them must have handed their updates to the service first.

    Args:
      save: f(session, step) -> the path written; a collective.
      period, clock: see `PeriodicHook`.
    """

    phase, order = "checkpoint", Order.SAVE

    def __init__(self, save, period, clock=None):
        super().__init__(period, clock)
        self._save, self._saved = save, None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._saved = self.step

    def act(self, run_context):
        self._save_once(run_context.session)

    def end(self, session):
        with self._clock.within(self.phase):
            self._save_once(session)

    def _save_once(self, session):
        if self._saved != self.step:
            path = self._save(session, self.step)
            self._saved = self.step
            self._period.begin()
            _log.info("saved the checkpoint of step %d: %s", self.step, path)
