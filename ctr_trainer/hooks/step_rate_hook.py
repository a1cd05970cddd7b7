"""Logs how fast a worker's steps are."""

import logging

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.measuring.clock import Clock
from ctr_trainer.messages import log_lines
from ctr_trainer.settings.run_config import GRAPH_NAMES, PLAIN_NAMES

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)
_TAG = "global_step/sec"


class StepRateHook(StepHook):
    """Logs `global_step/sec: 63.9` of the steps since the previous line, and keeps it for TensorBoard; for rank 0 only.

    It replaces TensorFlow's `StepCounterHook`, whose clock counts evaluations as time of training.

    Args:
      clock: `Clock` of the thread of the steps.
      every_n_steps: at least 1.
      directory: of the summaries; None for none.
      names: one of `LOG_NAMES`. `graph` logs the line as TensorFlow writes it: `INFO:tensorflow:global_step/sec: 63.9`.
    """

    order = Order.WATCH

    def __init__(
        self, clock: Clock, every_n_steps: int, directory: str | None = None, names: str = PLAIN_NAMES
    ) -> None:
        super().__init__()
        self._as_tensorflow = names == GRAPH_NAMES
        self._clock, self._every_n_steps, self._directory = clock, every_n_steps, directory

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._writer = self._directory and tf1.summary.FileWriterCache.get(self._directory)
        self._from = None

    def after_step(self, run_context, run_values):
        seconds = self._clock.training_seconds()
        if self._from is None:
            self._from = self.step, seconds
        elif self.step - self._from[0] >= self._every_n_steps:
            rate = (self.step - self._from[0]) / max(seconds - self._from[1], 1e-9)
            self._from = self.step, seconds
            if self._as_tensorflow:
                _log.info("INFO:tensorflow:%s: %g", _TAG, rate, extra=log_lines.AS_IT_IS)
            else:
                _log.info("%s: %g", _TAG, rate)
            if self._writer:
                self._writer.add_summary(tf1.Summary(value=[tf1.Summary.Value(tag=_TAG, simple_value=rate)]), self.step)
