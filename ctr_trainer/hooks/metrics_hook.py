"""Logs the click metrics of training."""

import logging
import time

import numpy as np
import tensorflow as tf

from ctr_trainer.hooks.step_hook import StepHook, periodic
from ctr_trainer.metrics.metrics_by_label import MetricsByLabel, weights_of

_log = logging.getLogger(__name__)


class MetricsHook(StepHook):
    """Logs `step 2800, auc = 0.6706 (63.9 it/sec; 65430.9 examples/sec)`, and alike the means since the line before.

    Args:
      tensors: dict of `logits`, `labels`, `weights`: float32[B]; or, of several labels, by label name such a dict.
      scalars: dict that gets the figures, for the summaries.
      auc_window_steps: 0 for the AUC since the start; n starts it anew every n steps, at a line.
      every_n_steps, every_n_secs: exactly one; between two lines.
    """

    def __init__(self, tensors, scalars, auc_window_steps=0, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._tensors, self._scalars, self._auc_window_steps = tensors, scalars, auc_window_steps
        self._metrics = MetricsByLabel(tensors)

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)
        self._start_window()
        self._auc_from = self.step

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def after_step(self, run_context, run_values):
        values = run_values.results
        self._metrics.update(values)
        self._examples += np.count_nonzero(weights_of(values))
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._report()

    def end(self, session):
        if self.step > self._from_step:
            self._report()

    def _report(self):
        seconds = time.perf_counter() - self._from_time
        steps_per_sec, examples_per_sec = (self.step - self._from_step) / seconds, self._examples / seconds
        results = self._metrics.results()
        for name, value in results.items():
            line = "step %d, %s = %.4f (%.1f it/sec; %.1f examples/sec)"
            _log.info(line, self.step, name, value, steps_per_sec, examples_per_sec)
        self._scalars.update(results, examples_per_sec=examples_per_sec)
        self._metrics.reset(is_auc=False)
        if self._auc_window_steps and self.step - self._auc_from >= self._auc_window_steps:
            self._metrics.reset(is_auc=True)
            self._auc_from = self.step
        self._start_window()

    def _start_window(self):
        self._from_step, self._from_time, self._examples = self.step, time.perf_counter(), 0
