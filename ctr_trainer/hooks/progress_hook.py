"""A progress bar for a pass whose length is known."""

import sys

import tqdm

from ctr_trainer.hooks.step_hook import StepHook


class ProgressHook(StepHook):
    """Shows steps done, steps a second and the time left, where standard error is a terminal.

    Args:
      what: as `evaluating`.
      steps: how many there will be.
    """

    def __init__(self, what, steps):
        super().__init__()
        self._bar = tqdm.tqdm(desc=what, total=steps, unit=" steps", disable=not sys.stderr.isatty(), leave=None)

    def after_step(self, run_context, run_values):
        self._bar.update()

    def end(self, session):
        self._bar.close()
