"""A line that shows at a terminal how far the training is."""

import contextlib
import sys

import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctr_trainer.hooks.step_hook import StepHook

_OF_MANY = "step {n_fmt} of {total_fmt} |{bar:20}| {speed}, {remaining} left{auc}"
_ENDLESS = "step {n_fmt}, {speed}, {elapsed} so far{auc}"


class TrainingProgressHook(StepHook):
    """Redraws `step 1200 of 9000 |...| 65431 examples/s, 02:05 left, auc 0.7812` in place; nothing without a terminal.

    The log's lines stand above it, whole. The rate is that of the last steps, of all workers, if they are as fast as
    this one; the AUC is the log's last.

    Args:
      scalars: dict that `MetricsHook` fills.
      examples: of a step of all workers; None where they are not known: then steps are counted.
      last_step: where training stops, or None.
      steps: how many the input has, or None.
    """

    def __init__(self, scalars, examples, last_step, steps):
        super().__init__()
        self._scalars, self._examples, self._last_step, self._steps = scalars, examples, last_step, steps
        self._resources = contextlib.ExitStack()
        self._bar = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if not sys.stderr.isatty():
            return
        ends = [self._last_step, None if self._steps is None else self.step + self._steps]
        total = min((end for end in ends if end is not None), default=None)
        # `tqdm.write` moves the bar out of a line's way; as of the log's handlers, of whoever wrote them.
        self._resources.enter_context(logging_redirect_tqdm())
        self._bar = self._resources.enter_context(
            _Bar(self._scalars, self._examples, total=total, initial=self.step, file=sys.stderr, dynamic_ncols=True)
        )

    def after_step(self, run_context, run_values):
        if self._bar is not None:
            self._bar.update()

    def end(self, session):
        self.close()

    def close(self):
        """Leaves the line as it is and gives the log its terminal back."""
        self._resources.close()


class _Bar(tqdm.tqdm):
    def __init__(self, scalars, examples, **settings):
        self._scalars, self._examples = scalars, examples
        super().__init__(bar_format=_OF_MANY if settings["total"] is not None else _ENDLESS, **settings)

    @property
    def format_dict(self):
        values = super().format_dict
        rate = values["rate"] or (values["n"] - values["initial"]) / max(values["elapsed"], 1e-9)
        speed = f"{rate:.1f} steps/s" if self._examples is None else f"{rate * self._examples:.0f} examples/s"
        auc = [f"{name} {value:.4f}" for name, value in self._scalars.items() if name.split("/")[0] == "auc"]
        return {**values, "speed": speed, "auc": "".join(f", {text}" for text in auc)}
