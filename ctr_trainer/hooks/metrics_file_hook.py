"""Keeps the figures of the log in a file that programs read."""

import json
import os
import time

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook

FILE = "metrics.jsonl"


class MetricsFileHook(StepHook):
    """Appends a JSON line of each `Line` of the training; rank 0 only.

    A run's first line has only `step`, where it goes on from, and `time`: lines of later steps before it are of a run
    that was cut off, and count no more.

    Args:
      directory: of the file.
    """

    order = Order.TAKE

    def __init__(self, directory):
        super().__init__()
        self._path = os.path.join(directory, FILE)

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._write(self.step, {})

    def after_step(self, run_context, run_values):
        """The lines come by `take`."""

    def take(self, line):
        """Writes a `Line`."""
        values = line.figures()
        # JSON has no NaN: what is not defined is left out.
        self._write(line.step, {name: value for name, value in values.items() if value == value})

    def _write(self, step, values):
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n")
