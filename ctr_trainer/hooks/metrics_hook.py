"""Logs the click metrics of training."""

import logging
import time

import numpy as np
import tensorflow as tf

from ctr_trainer.hooks.step_hook import StepHook, periodic
from ctr_trainer.metrics.click_metrics import ClickMetrics, metric_name
from ctr_trainer.metrics.curves import roc_auc

_log = logging.getLogger(__name__)
_IN_FOUR_DIGITS = ("auc", "accuracy")


class MetricsHook(StepHook):
    """Logs `step 2800, auc = 0.6706 (63.9 it/sec; 65430.9 examples/sec)`, and alike the means since the line before.

    Args:
      tensors: by label, a dict of `logits`, `labels`, `weights`: float32[B]; as of `metric_tensors`.
      scalars: dict that gets the figures, for the summaries.
      auc_window_steps: 0 for the AUC since the start; n starts it anew every n steps, at a line.
      every_n_steps, every_n_secs: exactly one; between two lines.
    """

    def __init__(self, tensors, scalars, auc_window_steps=0, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._tensors, self._scalars, self._auc_window_steps = tensors, scalars, auc_window_steps
        self._metrics = {label: ClickMetrics() for label in tensors}

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)
        self._start_window()
        self._auc_from, self._auc_is_over = self.step, False

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def after_micro_batch(self, run_context, run_values):
        if self._auc_is_over:  # Kept until here, for `auc`.
            for metrics in self._metrics.values():
                metrics.parts["auc"].reset()
            self._auc_from, self._auc_is_over = self._from_step, False
        for label, values in run_values.results.items():
            self._metrics[label].update(values["logits"], values["labels"], values["weights"])
        self._examples += np.count_nonzero(values["weights"])

    def after_step(self, run_context, run_values):
        self.after_micro_batch(run_context, run_values)
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._report()

    def end(self, session):
        if self.step > self._from_step:
            self._report()

    def exclude(self, seconds):
        """Counts a pause since the last step out of the rates."""
        self._from_time += seconds

    def auc(self, all_sum):
        """-> by `auc` or `auc/<label>`, the AUC of all ranks' examples since the last window began. A collective.

        Args:
          all_sum: as `distributed.all_sum`.
        """
        return {
            metric_name("auc", label): roc_auc(*all_sum(metrics.parts["auc"].state, metric_name("train_auc", label)))
            for label, metrics in self._metrics.items()
        }

    def _report(self):
        seconds = time.perf_counter() - self._from_time
        steps_per_sec, examples_per_sec = (self.step - self._from_step) / seconds, self._examples / seconds
        results = {
            metric_name(name, label): value
            for label, metrics in self._metrics.items()
            for name, value in metrics.results().items()
        }
        for name, value in results.items():
            digits = 4 if name.split("/")[0] in _IN_FOUR_DIGITS else 8
            line = "step %d, %s = %.*f (%.1f it/sec; %.1f examples/sec)"
            _log.info(line, self.step, name, digits, value, steps_per_sec, examples_per_sec)
        self._scalars.update(results, examples_per_sec=examples_per_sec)
        self._auc_is_over = 0 < self._auc_window_steps <= self.step - self._auc_from
        for metrics in self._metrics.values():
            for name, metric in metrics.parts.items():
                if name != "auc":
                    metric.reset()
        self._start_window()

    def _start_window(self):
        self._from_step, self._from_time, self._examples = self.step, time.perf_counter(), 0
