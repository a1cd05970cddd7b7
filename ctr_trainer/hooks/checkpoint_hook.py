"""Saves both halves of the model every N steps."""

import logging

from ctr_trainer.hooks.step_hook import StepHook

_log = logging.getLogger(__name__)


class CheckpointHook(StepHook):
    """Saves after every step whose number divides by `every_n_steps`, and at the end.

    Every rank takes part, since all of them must have handed their updates to the service first.

    Args:
      save: f(session, step) -> the path written; a collective.
      every_n_steps: 0 saves at the end only.
    """

    def __init__(self, save, every_n_steps):
        super().__init__()
        self._save, self._every_n_steps = save, every_n_steps
        self._saved = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._saved = self.step

    def after_step(self, run_context, run_values):
        if self._every_n_steps and self.step % self._every_n_steps == 0:
            self._save_once(run_context.session)

    def end(self, session):
        self._save_once(session)

    def _save_once(self, session):
        if self._saved != self.step:
            path = self._save(session, self.step)
            self._saved = self.step
            _log.info("saved the checkpoint of step %d: %s", self.step, path)
