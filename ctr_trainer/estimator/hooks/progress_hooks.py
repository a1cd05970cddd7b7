"""Shows how far a run is: a line that is redrawn at a terminal, lines of the log elsewhere."""

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1
import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctr_trainer.estimator.hooks.metrics_hook import LineTaker
from ctr_trainer.estimator.hooks.step_hook import StepHook
from ctr_trainer.graph_notes.run_length import RunLength
from ctr_trainer.metrics.click_metrics import Line
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.log_lines import format_seconds

_log = logging.getLogger(__name__)
_OF_MANY = "step {n_fmt} of {total_fmt} |{bar:20}| {speed}, {remaining} left{auc}"
_ENDLESS = "step {n_fmt}, {speed}, {elapsed} so far{auc}"


class ProgressHook(StepHook):
    """Shows steps done, steps per second and the time left, if standard error is a terminal.

    Args:
      what: title of the bar, such as `evaluating`.
      steps: number of steps of the pass.
    """

    def __init__(self, what: str, steps: int) -> None:
        super().__init__()
        self._bar = tqdm.tqdm(desc=what, total=steps, unit=" steps", disable=not sys.stderr.isatty(), leave=None)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._bar.update()

    def end(self, session: tf1.Session) -> None:
        self._bar.close()


class TrainingProgress(LineTaker):
    """Redraws `step 1200 of 9000 |...| 65431 examples/s, 02:05 left, auc 0.7812` in place at a terminal.

    The lines of the log appear above it. It shows the rate of all workers and the AUC in the last line of the log.
    Before the first line, the rate is of all steps so far, under the assumption that all workers are equally fast. If
    there is no terminal, each `Line` of the training is followed by a line of the log such as
    `step 2800 of 10000 (28%), epoch 1.4 of 5, 2 min 10 s left`.

    At the end of each epoch, the log says how long the epoch took, without evaluations.

    Args:
      clock: `Clock` of the thread of the steps.
      draws: whether to draw at a terminal; False logs lines there too.
      examples: number of examples of a step of all workers; None if it is not known: then steps are counted.
      last_step: the step at which training stops, or None.
      steps: number of steps that the input has, or None.
      epoch: f(steps since the start) -> number of epochs of the data that are done, or None.
      epochs: number of epochs of the whole run, or None.
      length: says when the epochs of the run end.
    """

    def __init__(
        self,
        clock: Clock,
        draws: bool,
        examples: int | None,
        last_step: int | None,
        steps: int | None,
        epoch: Callable[[int], float | None] = lambda steps: None,
        epochs: int | None = None,
        length: RunLength = RunLength(),  # noqa: B008, it is frozen
    ) -> None:
        self._clock, self._draws, self._examples = clock, draws, examples
        self._last_step, self._steps = last_step, steps
        self._epoch, self._epochs = epoch, epochs
        self._length = length
        self._epoch_end: int | None = None
        self._resources = contextlib.ExitStack()
        self._bar: _Bar | None = None

    def start(self, step: int) -> None:
        ends = [self._last_step, None if self._steps is None else step + self._steps]
        self._total = total = min((end for end in ends if end is not None), default=None)
        self._start, self._shown, self._seconds = step, step, 0.0
        if self._length.epochs is not None:
            self._begin_epoch(step)
        if not self._draws or not sys.stderr.isatty():
            return
        # The handlers of the log write above the bar.
        self._resources.enter_context(logging_redirect_tqdm())
        self._bar = self._resources.enter_context(
            _Bar(self._clock, self._examples, total=total, initial=step, file=sys.stderr, dynamic_ncols=True)
        )

    def stepped(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update()
        if step == self._epoch_end:
            self._end_epoch(step)

    def take(self, line: Line) -> None:
        """Shows how far the training was at a `Line`; the bar shows its rate and its AUC from now on."""
        if self._bar is not None:
            self._bar.line = line
            self._bar.auc = {name: value for name, value in line.values.items() if name.split("/")[0] == "auc"}
            return
        self._seconds += (line.step - self._shown) / line.steps_per_sec
        self._shown = line.step
        parts, epoch = [f"step {line.step}"], self._epoch(line.step - self._start)
        if self._total is not None:
            parts = [f"step {line.step} of {self._total} ({line.step / self._total:.0%})"]
        if epoch is not None:
            parts.append(f"epoch {epoch:.1f}" + (f" of {self._epochs}" if self._epochs else ""))
        if self._total is not None:
            left = (self._total - line.step) * self._seconds / (line.step - self._start)
            parts.append(f"{format_seconds(left)} left")
        _log.info("%s", ", ".join(parts))

    def _begin_epoch(self, step: int) -> None:
        self._epoch_end = self._length.next_epoch_end(step)
        self._epoch_began = step, self._clock.training_seconds()

    def _end_epoch(self, step: int) -> None:
        began, since = self._epoch_began
        seconds, epochs = self._clock.training_seconds() - since, self._length.epochs
        assert epochs is not None  # `_begin_epoch` is called only if they are known.
        done = self._length.epochs_done(step)
        parts = [f"{step - began:,} steps"]
        is_whole = began > self._length.start or epochs.before % epochs.batches == 0
        if is_whole and epochs.rows is not None:
            parts.append(f"{epochs.rows:,} rows, {epochs.rows / max(seconds, 1e-9):,.1f} rows/sec")
        which = f"epoch {done}" + (f" of {self._epochs}" if self._epochs else "")
        _log.info("%s%s took %.1f s: %s", "" if is_whole else "the rest of ", which, seconds, ", ".join(parts))
        self._begin_epoch(step)

    def close(self) -> None:
        """Leaves the bar as it is, and writes the lines of the log to the terminal directly again."""
        self._resources.close()


class _Bar(tqdm.tqdm):
    def __init__(self, clock: Clock, examples: int | None, **settings: Any) -> None:
        self.auc: dict[str, float] = {}
        self.line: Line | None = None
        self._clock, self._examples = clock, examples
        super().__init__(bar_format=_OF_MANY if settings["total"] is not None else _ENDLESS, **settings)

    @property
    def format_dict(self) -> dict[str, Any]:
        values, seconds = super().format_dict, self._clock.training_seconds()
        rate, examples = (values["n"] - values["initial"]) / max(seconds, 1e-9), None
        if self.line is not None:
            rate, examples = self.line.steps_per_sec, self.line.examples_per_sec
        if examples is None and self._examples is not None:
            examples = rate * self._examples
        speed = f"{rate:.1f} steps/s" if examples is None else f"{examples:.0f} examples/s"
        auc = [f"{name} {value:.4f}" for name, value in self.auc.items()]
        return {**values, "rate": rate, "elapsed": seconds, "speed": speed, "auc": "".join(f", {text}" for text in auc)}
