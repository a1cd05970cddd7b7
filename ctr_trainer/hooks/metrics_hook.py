"""Adds up the figures of training, and gives them out line by line."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from ctr_trainer.hooks.step_hook import Order, StepHook, periodic
from ctr_trainer.messages.errors import UserError
from ctr_trainer.metrics import line_sums
from ctr_trainer.metrics.auc import roc_auc
from ctr_trainer.metrics.click_metrics import ClickMetrics, metric_name
from ctr_trainer.metrics.line_sums import WorkerFigures
from ctr_trainer.processes.background import Background

_CLOSE_SECONDS = 2.0


class OwnLines:
    """Each line is of this worker."""

    def put(self, step, sums):
        """-> the lines that are known now: a list of (step, sums, whose)."""
        return [(step, sums, "")]

    def ready(self):
        """-> the lines that have become known since, likewise; it does not wait."""
        return []

    def finish(self):
        """-> the lines that were not known yet, likewise; it waits for them."""
        return []

    def close(self):
        """Ends what is under way, also after an error."""


class MergedLines(OwnLines):
    """Rank 0's lines are of all workers; each other rank's are its own.

    The sums of a line are added up in a thread beside the next steps, so that no step waits for the slowest rank, and
    rank 0 knows the line some steps later. Only where the next line is due, and at the end, is the one before waited
    for.

    All ranks put a line at the same steps, and finish at the same one. A collective.

    Args:
      rank, size: of this worker, and how many there are.
      all_sum: f(float64[n]) -> the sum of all ranks' arrays; called in the thread, always by one at a time.
      waiting: f(what) -> context manager around a wait for the other ranks.
    """

    def __init__(self, rank, size, all_sum, waiting):
        self._rank, self._size, self._all_sum, self._waiting = rank, size, all_sum, waiting
        self._background = Background("adding up the figures of all workers")
        self._step = self._sums = None

    def put(self, step, sums):
        """As `OwnLines`."""
        lines = self.finish()
        self._step = step

        def add_up():
            self._sums = self._all_sum(sums)

        self._background.start(add_up)
        return [*lines, (step, sums, f"rank {self._rank}")] if self._rank else lines

    def ready(self):
        """As `OwnLines`."""
        return [] if self._step is None or self._background.is_busy else self.finish()

    def finish(self):
        """As `OwnLines`."""
        if self._step is None:
            return []
        step, self._step = self._step, None
        with self._waiting(f"the figures of step {step} of the other ranks"):
            self._background.wait()
        return [] if self._rank else [(step, self._sums, f"{self._size} workers")]

    def close(self):
        """As `OwnLines`: what the other ranks have no part in any more is left alone after two seconds."""
        with contextlib.suppress(UserError):
            self._background.close(_CLOSE_SECONDS)


class MetricsHook(StepHook):
    """Every N steps gives a `Line` to those who take it: the AUC since the start, and the means since the line before.

    With `MergedLines` a line of step s is given some steps after it, by the next line at the latest.

    Args:
      tensors: by label, a dict of `logits`, `labels`, `weights`: float32[B]; as of `metric_tensors`. {} of a model
        without logits: then a line has the loss, and its examples are not known.
      loss: scalar tensor.
      takers: objects with `take(line)`, called in their order.
      clock: `Clock` of the thread of the steps, by which the rates are.
      lines: `OwnLines` or `MergedLines`; None for the former.
      auc_window_steps: 0 for the AUC since the start; n starts it anew every n steps, at a line.
      every_n_steps, every_n_secs: exactly one; between two lines. Merged ones come by steps.
      weight: scalar tensor, what this worker's batch counts where a model without logits says no weights; None for 1.
      own: f() -> `WorkerFigures` as of the step just done; the hook adds the learning rate and the rates.
      learning_rate: scalar tensor, the learning rate of the dense variables; None if there is none.
    """

    order = Order.LINES

    def __init__(
        self,
        tensors,
        loss,
        takers,
        clock,
        lines=None,
        auc_window_steps=0,
        every_n_steps=None,
        every_n_secs=None,
        weight=None,
        own=WorkerFigures,
        learning_rate=None,
    ):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        if lines is not None and every_n_steps is None:
            raise ValueError("ranks meet at steps, not at times: give every_n_steps")
        further = {"weight": weight, "learning_rate": learning_rate}
        fetches = {"loss": loss, "labels": tensors}
        fetches |= {name: tensor for name, tensor in further.items() if tensor is not None}
        self._arguments = tf.compat.v1.train.SessionRunArgs(fetches)  # The same object for each step.
        self._takers, self._lines, self._auc_window_steps = takers, lines or OwnLines(), auc_window_steps
        self._own, self._owns = own, {}  # What it said by step, until that line is known.
        self._clock = clock
        self._metrics = {label: ClickMetrics() for label in tensors}

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)
        self._start_window()
        self._auc_from, self._auc_is_over = self.step, False

    def before_run(self, run_context):
        return self._arguments

    def after_micro_batch(self, run_context, run_values):
        if self._auc_is_over:  # Kept until here, for `auc`.
            for metrics in self._metrics.values():
                metrics.auc.reset()
            self._auc_from, self._auc_is_over = self._from_step, False
        weights = run_values.results.get("weight")
        for label, values in run_values.results["labels"].items():
            weights = values["weights"]
            self._metrics[label].update(values["logits"], values["labels"], weights)
        if self._metrics:
            self._examples += np.count_nonzero(weights)
        self._last = run_values.results["loss"], weights, run_values.results.get("learning_rate")

    def after_step(self, run_context, run_values):
        self.after_micro_batch(run_context, run_values)
        self._give(self._lines.ready())
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._end_window()

    def end(self, session):
        self._give(self._lines.finish())
        if self.step > self._from_step:
            self._end_window()
            self._give(self._lines.finish())

    def close(self):
        """Ends what is under way."""
        self._lines.close()

    def auc(self, all_sum):
        """-> by `auc` or `auc/<label>`, the AUC of all ranks' examples since the last window began. A collective.

        Args:
          all_sum: as `distributed.all_sum`.
        """
        return {
            metric_name("auc", label): roc_auc(*all_sum(metrics.auc.state, metric_name("train_auc", label)))
            for label, metrics in self._metrics.items()
        }

    def _end_window(self):
        seconds = self._clock.training_seconds() - self._from_seconds
        loss, weights, lr = self._last
        weight = 1.0 if weights is None else float(weights.sum(dtype=np.float64))
        own = self._owns[self.step] = dataclasses.replace(
            self._own(),
            lr=None if lr is None else float(lr),
            steps_per_sec=(self.step - self._from_step) / seconds,
            examples_per_sec=self._examples / seconds,
        )
        sums = line_sums.pack(self._metrics, float(np.mean(loss)), weight, own)
        self._auc_is_over = 0 < self._auc_window_steps <= self.step - self._auc_from
        for metrics in self._metrics.values():
            for name, metric in metrics.parts.items():
                if name != "auc":
                    metric.reset()
        self._start_window()
        self._give(self._lines.put(self.step, sums))

    def _give(self, lines):
        for step, sums, of in lines:
            line = line_sums.unpack(sums, list(self._metrics), step, of, self._owns.pop(step))
            for taker in self._takers:
                taker.take(line)

    def _start_window(self):
        self._from_step, self._from_seconds, self._examples = self.step, self._clock.training_seconds(), 0
