"""Logs the latency percentiles of a step's parts."""

import logging

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook, periodic
from ctr_trainer.measuring.latency import UNIT

_log = logging.getLogger(__name__)


class RunStatusHook(StepHook):
    """Logs `[RunStatus]: OpsEmbeddingLookup statistics => count: 1553  P50: ...` of the time since the line before.

    The first of these lines is preceded by one that says their unit.

    Args:
      latencies: list of `Latency`.
      others: list of f() -> another line.
      every_n_steps, every_n_secs: exactly one.
    """

    order = Order.WATCH

    def __init__(self, latencies, others=(), every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._latencies, self._others, self._has_said_unit = latencies, others, False

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)

    def after_step(self, run_context, run_values):
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._report()

    def end(self, session):
        self._report()

    def _report(self):
        for latency in self._latencies:
            if latency.count:
                if not self._has_said_unit:
                    self._has_said_unit = True
                    _log.info(UNIT)
                _log.info(latency.status_line())
                latency.reset()
        for line in self._others:
            _log.info(line())
