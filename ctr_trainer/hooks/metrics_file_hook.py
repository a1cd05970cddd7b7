"""Keeps the figures of the log in a file that programs read."""

import json
import os
import time

import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.hooks.step_hook import StepHook, periodic

FILE = "metrics.jsonl"


class MetricsFileHook(StepHook):
    """Appends a JSON line of the loss and of what the other hooks left in `scalars`; rank 0 only.

    A run's first line has only `step`, where it goes on from, and `time`: lines of later steps before it are of a run
    that was cut off, and count no more. `examples_per_sec` is that of all workers, taken to be as fast as this one.

    Args:
      directory: of the file.
      loss: scalar tensor.
      scalars: dict of name -> float, filled by hooks that come before.
      every_n_steps, every_n_secs: exactly one.
    """

    def __init__(self, directory, loss, scalars, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._path, self._loss, self._scalars = os.path.join(directory, FILE), loss, scalars
        self._written = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._timer.update_last_triggered_step(self.step)
        self._write({})

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._loss)

    def after_step(self, run_context, run_values):
        self._last_loss = float(run_values.results)
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._write_figures()

    def end(self, session):
        if self._written != self.step:
            self._write_figures()

    def _write_figures(self):
        values = {"loss": self._last_loss, **self._scalars}
        if "examples_per_sec" in values:
            values["examples_per_sec"] *= distributed.size()
        # JSON has no NaN: what is not defined is left out.
        self._write({name: value for name, value in values.items() if value == value})

    def _write(self, values):
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": self.step, "time": round(time.time(), 3), **values}) + "\n")
        self._written = self.step
