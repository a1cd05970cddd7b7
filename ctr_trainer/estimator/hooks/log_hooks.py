"""Shows the figures of a training: in the log, in a file for programs, and in TensorBoard."""

import contextlib
import datetime
import json
import logging
import os
import sys
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf1
import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctr_trainer.estimator.hooks.ending_hooks import StepHook
from ctr_trainer.estimator.hooks.metrics_hook import LineTaker
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.metrics.click_metrics import Line
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import GRAPH_NAMES, PLAIN_NAMES
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages import log_lines

_log = logging.getLogger(__name__)
_IN_FOUR_DIGITS = ("auc", "auc_window", "auc_event_window", "accuracy", "copc", "copc_event_window")
FILE = "metrics.jsonl"
_TAG = "global_step/sec"


class MetricLines(LineTaker):
    """Logs one line per figure, such as `step 2800, auc = 0.6706 (63.9 it/sec; 65430.9 examples/sec)`.

    Then it logs `current lr: 0.050000`, the learning rate of the dense variables at that step, and
    `global_step/sec: 63.9`, without evaluations. If the figures cover several workers, a line has this worker's rates
    and then the examples per second of all workers, as in `(63.9 it/sec; 65430.9 examples/sec; 124878.3 of 2 workers)`.
    For a model with logits, the cross entropy is logged; for other models, the loss.

    Args:
      names: one of `LOG_NAMES`. `graph` writes the messages of a TensorFlow 1 program, such as `2024-10-02
        00:21:29.533615: step 2800, xentropy_mean:0 = 0.41235680 (63.9 it/sec; 65430.9 examples/sec)`. The means have
        the names of tensors. There is no accuracy and no rate of all workers.
      event_seconds: f() -> the newest event time of a stream in seconds since 1970, 0 before the first event. A last
        line then shows this time. None without a stream.
      logs_rate: whether to log `global_step/sec`.
    """

    def __init__(
        self, names: str = PLAIN_NAMES, event_seconds: Callable[[], float] | None = None, logs_rate: bool = True
    ) -> None:
        self._as_in_graph, self._event_seconds, self._logs_rate = names == GRAPH_NAMES, event_seconds, logs_rate

    def take(self, line: Line) -> None:
        """Logs a `Line`, with one figure in each line of the log."""
        values, now, pace, suffix = line.values, "", *self._pace(line)
        values = {name: value for name, value in values.items() if name != "loss"} or values
        if self._as_in_graph:
            values = {name: value for name, value in values.items() if name.split("/")[0] != "accuracy"}
            now = f"{datetime.datetime.now().isoformat(' ', 'microseconds')}: "
        for name, value in values.items():
            of_examples = name.split("/")[0] in _IN_FOUR_DIGITS
            shown, digits = name if of_examples or not self._as_in_graph else f"{name}:0", 4 if of_examples else 8
            _log.info("%sstep %d, %s = %.*f (%s)%s", now, line.step, shown, digits, value, pace, suffix)
        if line.own.lr is not None:
            _log.info("current lr: %f", line.own.lr)
        if self._logs_rate:
            _log.info("%s: %g", _TAG, line.own.steps_per_sec)
        if self._event_seconds:
            _log.info("%sstep %d, event time = %s", now, line.step, log_lines.event_text(self._event_seconds()))

    def _pace(self, line: Line) -> tuple[str, str]:
        """Returns the text in the parentheses of a line, and the text after them."""
        pace, several = f"{line.own.steps_per_sec:.1f} it/sec", line.workers > 1
        if line.examples_per_sec is not None:
            pace += f"; {line.own.examples_per_sec:.1f} examples/sec"
            if several and not self._as_in_graph:
                return f"{pace}; {line.examples_per_sec:.1f} of {line.of}", ""
        return pace, "" if self._as_in_graph or not line.of else f" of {line.of}"


class MetricsFile(LineTaker):
    """Appends each `Line` of the training to `metrics.jsonl` as a line of JSON. Rank 0 only.

    The first line of a run has only `step`, at which the run starts or resumes, and `time`. Earlier lines with later
    steps belong to an interrupted run and are no longer valid.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE)

    def start(self, step: int) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._write(step, {})

    def take(self, line: Line) -> None:
        # Undefined figures are omitted, because JSON has no NaN.
        self._write(line.step, {name: value for name, value in line.figures().items() if value == value})

    def _write(self, step: int, values: dict[str, float]) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n")


class Summaries(LineTaker):
    """Writes the figures of the training as summaries for TensorBoard. Rank 0 only.

    Args:
      every_n_steps: the first `Line`, and then the first one after each period of this many steps, is written.
    """

    def __init__(self, directory: str, every_n_steps: int) -> None:
        self._directory, self._every_n_steps, self._next = directory, every_n_steps, 0
        self._writer: tf1.summary.FileWriter | None = None  # None before `start`.

    def start(self, step: int) -> None:
        # The hooks of the session write to the same writer.
        self._writer = tf1.summary.FileWriterCache.get(self._directory)
        self._writer.add_graph(tf1.get_default_graph())

    def take(self, line: Line) -> None:
        if line.step >= self._next:
            self._next = line.step + self._every_n_steps
            assert self._writer is not None
            figures = {**line.figures(), _TAG: line.own.steps_per_sec or 0.0}
            values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
            self._writer.add_summary(tf1.Summary(value=values), line.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.flush()


class ProgressHook(StepHook):
    """Shows steps done, steps per second and the time left on rank 0, if standard error is a terminal.

    Args:
      what: title of the bar, such as `evaluating`.
      steps: number of steps of the pass; None if it is not known.
    """

    def __init__(self, what: str, steps: int | None) -> None:
        hidden = not (distributed.is_chief() and sys.stderr.isatty())
        self._bar = tqdm.tqdm(desc=what, total=steps, unit=" steps", disable=hidden, leave=None)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._bar.update()

    def end(self, session: tf1.Session) -> None:
        self._bar.close()


class TrainingProgress(LineTaker):
    """Logs after each `Line` how far the training is: `step 2800 of 10000 (28%), epoch 1.4 of 5, 2 min 10 s left`.

    At the end of each epoch, the log reports how long the epoch took, without evaluations. If standard error is a
    terminal, a progress bar is redrawn below the log.

    Args:
      clock: `Clock` of the training thread.
      length: determines when the run and its epochs end.
      epoch: f(steps since the start) -> number of epochs completed, or None.
      epochs: number of epochs of the whole run, or None.
      stops_early: whether the run may end sooner, so that its last step and its epochs are upper bounds.
    """

    def __init__(
        self,
        clock: Clock,
        length: RunLength,
        epoch: Callable[[int], float | None] = lambda steps: None,
        epochs: int | None = None,
        stops_early: bool = False,
    ) -> None:
        self._at_most = "at most " if stops_early else ""
        self._of_epochs = f" of {self._at_most}{epochs}" if epochs else ""
        self._clock, self._length, self._epoch, self._total = clock, length, epoch, length.end()
        self._epoch_end: int | None = None
        self._bar, self._drawing = tqdm.tqdm(disable=True), contextlib.ExitStack()

    def start(self, step: int) -> None:
        self._start, self._began = step, self._clock.training_seconds()
        if self._length.epochs is not None:
            self._begin_epoch(step)
        if sys.stderr.isatty():
            self._drawing.enter_context(logging_redirect_tqdm())  # The log is written above the bar.
            self._bar = self._drawing.enter_context(tqdm.tqdm(total=self._total, initial=step, unit=" steps"))

    def stepped(self, step: int) -> None:
        self._bar.update()
        if step == self._epoch_end:
            self._end_epoch(step)

    def take(self, line: Line) -> None:
        parts, epoch = [f"step {line.step}"], self._epoch(line.step - self._start)
        if self._total is not None:
            parts = [f"step {line.step} of {self._at_most}{self._total} ({line.step / self._total:.0%})"]
        if epoch is not None:
            parts.append(f"epoch {epoch:.1f}{self._of_epochs}")
        if self._total is not None:
            seconds = self._clock.training_seconds() - self._began
            left = (self._total - line.step) * seconds / (line.step - self._start)
            parts.append(f"{self._at_most}{log_lines.format_seconds(left)} left")
        _log.info("%s", ", ".join(parts))

    def close(self) -> None:
        self._drawing.close()

    def _begin_epoch(self, step: int) -> None:
        self._epoch_end = self._length.next_epoch_end(step)
        self._epoch_began = step, self._clock.training_seconds()

    def _end_epoch(self, step: int) -> None:
        began, since = self._epoch_began
        seconds, epochs = self._clock.training_seconds() - since, self._length.epochs
        assert epochs is not None  # `_begin_epoch` is called only if the epochs are known.
        done = self._length.epochs_done(step)
        parts = [f"{step - began:,} steps"]
        is_whole = began > self._length.start or epochs.before % epochs.batches == 0
        if is_whole and epochs.rows is not None:
            parts.append(f"{epochs.rows:,} rows, {epochs.rows / max(seconds, 1e-9):,.1f} rows/sec")
        which = f"{'' if is_whole else 'the rest of '}epoch {done}{self._of_epochs}"
        _log.info("%s took %.1f s: %s", which, seconds, ", ".join(parts))
        self._begin_epoch(step)
