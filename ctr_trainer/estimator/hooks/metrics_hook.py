"""Sums the figures of a training, and passes them on as lines."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.step_hook import StepHook, periodic
from ctr_trainer.models.metrics import click_metrics
from ctr_trainer.models.metrics.auc import copc, roc_auc
from ctr_trainer.models.metrics.click_metrics import LINES_SCORES, ClickMetrics, Line, WorkerFigures, metric_name
from ctr_trainer.models.metrics.score_sums import ScoreSums
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.waiting import Background

_CLOSE_SECONDS = 2.0
_OF_EVENT_WINDOWS = {"auc": "auc_event_window", "xentropy_mean": "xentropy_event_window", "copc": "copc_event_window"}


class OwnLines:
    """Lines of this worker only."""

    def put(self, step: int, sums: np.ndarray) -> list[tuple[int, np.ndarray, str]]:
        """Takes the sums of a line. Returns the lines that are complete now, as (step, sums, name of the workers)."""
        return [(step, sums, "")]

    def ready(self) -> list[tuple[int, np.ndarray, str]]:
        """Returns the lines that were completed in the meantime. Does not wait."""
        return []

    def finish(self) -> list[tuple[int, np.ndarray, str]]:
        """Waits for the lines that are not complete yet, and returns them."""
        return []

    def close(self) -> None:
        """Stops the work in progress. Also called after an error."""


class MergedLines(OwnLines):
    """Lines of all workers on rank 0, and of this worker on each other rank.

    The figures of a line are added up in the background, so that no step waits for the slowest rank. Rank 0 has the
    line some steps later. A rank waits for a line only when the next line is due, and at the end.

    All ranks must call `put` at the same steps, and `finish` at the same step. A collective.

    Args:
      add_up: f(vector of `click_metrics.pack`) -> the vector of all ranks; called in a thread, never concurrently.
      waiting: f(what) -> context manager around a wait for the other ranks.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        add_up: Callable[[np.ndarray], np.ndarray],
        waiting: Callable[[str], contextlib.AbstractContextManager],
    ) -> None:
        self._rank, self._size, self._add_up, self._waiting = rank, size, add_up, waiting
        self._background = Background("adding up the figures of all workers")
        self._step: int | None = None
        self._sums = np.zeros(0)

    def put(self, step: int, sums: np.ndarray) -> list[tuple[int, np.ndarray, str]]:
        lines = self.finish()
        self._step = step

        def work() -> None:
            self._sums = self._add_up(sums)

        self._background.start(work)
        return [*lines, (step, sums, f"rank {self._rank}")] if self._rank else lines

    def ready(self) -> list[tuple[int, np.ndarray, str]]:
        return [] if self._step is None or self._background.is_busy else self.finish()

    def finish(self) -> list[tuple[int, np.ndarray, str]]:
        if self._step is None:
            return []
        step, self._step = self._step, None
        with self._waiting(f"the figures of step {step} of the other ranks"):
            self._background.wait()
        return [] if self._rank else [(step, self._sums, f"{self._size} workers")]

    def close(self) -> None:
        """Waits at most two seconds for a sum that the other ranks may never join."""
        with contextlib.suppress(UserError):
            self._background.close(_CLOSE_SECONDS)


class LineTaker:
    """Base class of the objects that show or store the lines of a training. `MetricsHook` calls its methods."""

    def start(self, step: int) -> None:
        """Called before the first step, with the global step at which the run starts or resumes."""

    def stepped(self, step: int) -> None:
        """Called after each step, after `take` was called with the lines that are complete by then."""

    def take(self, line: Line) -> None:
        """Takes a line."""

    def close(self) -> None:
        """Called at the end, also after an error, possibly before `start`, and possibly twice."""


class EventWindows:
    """Figures of windows of event time, such as of all examples of a stream whose events happened in the same hour.

    Each example counts in the window that is open when its line of the log is due, and was scored before the model
    learned from it. A window ends with the first line whose newest event is at or after the end of the window. The
    shorter the lines and the windows in which the stream is read, the more exact are the boundaries. Windows begin at
    multiples of their length since 1970; the first window of a run begins with the run.

    Args:
      event_seconds: f() -> the newest event time, in seconds since 1970; 0 before the first event.
      window_secs: the length of a window, in seconds.
    """

    def __init__(self, event_seconds: Callable[[], float], window_secs: float) -> None:
        self._event_seconds, self._window_secs = event_seconds, window_secs
        self._sums: np.ndarray | None = None
        self._number: int | None = None

    def add(self, sums: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        """Adds the sums of one line only. If the line ends a window, returns the window's figures, otherwise {}."""
        self._sums = sums if self._sums is None else click_metrics.add_up(np.stack([self._sums, sums]))
        now = self._event_seconds()
        number = int(now // self._window_secs) if now else None
        before, self._number = self._number, number if number is not None else self._number
        if before is None or number is None or number == before:
            return {}
        ended, self._sums = self._sums, None
        return _figures(ended, labels, _OF_EVENT_WINDOWS)


def _figures(sums: np.ndarray, labels: Sequence[str], names: dict[str, str]) -> dict[str, float]:
    """Returns the figures of `sums` in `names`, a dict of old -> new name. `copc` is the clicks per predicted click."""
    values = click_metrics.unpack(sums, labels, 0, "", WorkerFigures()).values
    found: dict[str, float] = {}
    for label in labels:
        means = (values[metric_name(name, label)] for name in ("real_mean", "prob_mean"))
        values[metric_name("copc", label)] = copc(*means)
        found |= {metric_name(new, label): values[metric_name(old, label)] for old, new in names.items()}
    return found


class MetricsHook(StepHook):
    """Passes a `Line` to its takers every N steps: the AUC since the start, and the means since the previous line.

    With `MergedLines`, the takers get the line of step s some steps later, at the latest with the next line.

    Args:
      tensors: dict of label -> dict of `logits`, `labels`, `weights`, float32[B], see `metric_tensors`. {} for a model
        without logits, whose lines have the loss, and whose number of examples is not known.
      loss: scalar tensor.
      takers: get the lines, in this order.
      clock: measures the rates.
      lines: None for `OwnLines`.
      every_n_steps, every_n_secs: exactly one; the period of the lines. `MergedLines` need `every_n_steps`.
      weight: scalar tensor, the weight of this worker's batch for a model without logits; None for 1.
      own: f() -> `WorkerFigures` at the last step, to which the hook adds the learning rate and the rates.
      learning_rate: scalar tensor, the learning rate of the dense variables; None if there is none.
      of_windows: whether a line also has the AUC since the previous line, `auc_window`, and `copc`, the clicks per
        predicted click in that time. It is meant for endless training, in which each example is new.
      event_windows: adds figures of windows of event time to the lines; None to add none.
    """

    def __init__(
        self,
        tensors: dict[str, dict[str, tf.Tensor]],
        loss: tf.Tensor,
        takers: Sequence[LineTaker],
        clock: Clock,
        lines: OwnLines | None = None,
        every_n_steps: int | None = None,
        every_n_secs: float | None = None,
        weight: tf.Tensor | None = None,
        own: Callable[[], WorkerFigures] = WorkerFigures,
        learning_rate: tf.Tensor | None = None,
        of_windows: bool = False,
        event_windows: EventWindows | None = None,
    ) -> None:
        super().__init__()
        self._of_windows, self._event_windows = of_windows, event_windows
        self._timer = periodic(every_n_steps, every_n_secs)
        if lines is not None and every_n_steps is None:
            raise ValueError("ranks meet at steps, not at times: give every_n_steps")
        further = {"weight": weight, "learning_rate": learning_rate}
        fetches = {"loss": loss, "labels": tensors}
        fetches |= {name: tensor for name, tensor in further.items() if tensor is not None}
        self._arguments = tf1.train.SessionRunArgs(fetches)  # The same object for each step.
        self._takers, self._lines = takers, lines or OwnLines()
        self._own = own
        self._owns: dict[int, WorkerFigures] = {}  # By step, until the line of the step is complete.
        self._clock = clock
        self._metrics = {label: ClickMetrics(LINES_SCORES) for label in tensors}
        self._since_start = {label: ScoreSums(LINES_SCORES) for label in tensors}

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)
        for taker in self._takers:
            taker.start(self.step)
        self._start_window()

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return self._arguments

    def after_micro_batch(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        weights = run_values.results.get("weight")
        for label, values in run_values.results["labels"].items():
            weights = values["weights"]
            self._metrics[label].update(values["logits"], values["labels"], weights)
        if self._metrics:
            self._examples += int(np.count_nonzero(weights))
        self._last, self._weights = run_values.results, weights

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.after_micro_batch(run_context, run_values)
        self._give(self._lines.ready())
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._end_window()
        for taker in self._takers:
            taker.stepped(self.step)

    def end(self, session: tf1.Session) -> None:
        self.finish()

    def finish(self) -> None:
        """Gives the last lines, and closes the takers. A collective with `MergedLines`."""
        self._give(self._lines.finish())
        if self.step > self._from_step:
            self._end_window()
            self._give(self._lines.finish())
        self.close()

    def close(self) -> None:
        """Stops the work in progress. Also called after an error."""
        self._lines.close()
        for taker in self._takers:
            taker.close()

    def auc(self) -> dict[str, float]:
        """Returns a dict of `auc` or `auc/<label>` -> AUC of the examples of all lines since the start."""
        return {metric_name("auc", label): roc_auc(*own.sums.T[1:3]) for label, own in self._since_start.items()}

    def _end_window(self) -> None:
        seconds = self._clock.training_seconds() - self._from_seconds
        lr = self._last.get("learning_rate")
        weight = 1.0 if self._weights is None else float(self._weights.sum(dtype=np.float64))
        own = self._owns[self.step] = dataclasses.replace(
            self._own(),
            lr=None if lr is None else float(lr),
            steps_per_sec=(self.step - self._from_step) / seconds,
            examples_per_sec=self._examples / seconds,
            batch={
                metric_name(name, label): value
                for label, tensors in self._last["labels"].items()
                for name, value in click_metrics.batch_means(**tensors).items()
            },
        )
        sums = click_metrics.pack(self._metrics, float(np.mean(self._last["loss"])), weight, own)
        for metrics in self._metrics.values():
            metrics.reset()
        self._start_window()
        self._give(self._lines.put(self.step, sums))

    def _give(self, lines: list[tuple[int, np.ndarray, str]]) -> None:
        for step, sums, of in lines:
            line = click_metrics.unpack(sums, list(self._metrics), step, of, self._owns.pop(step))
            for label, scores in click_metrics.scores_of(sums, list(self._metrics)).items():
                self._since_start[label].add(scores)
            values = line.values | self.auc()
            if self._of_windows:
                # The means of a window without examples are NaN, which JSON cannot represent.
                values = {name: value for name, value in (values | self._window(sums)).items() if value == value}
            line = dataclasses.replace(line, values=values)
            for taker in self._takers:
                taker.take(line)

    def _window(self, sums: np.ndarray) -> dict[str, float]:
        """Returns each label's AUC and COPC since the previous line, and the figures of a window that has ended."""
        found = _figures(sums, list(self._metrics), {"auc": "auc_window", "copc": "copc"})
        return found | (self._event_windows.add(sums, list(self._metrics)) if self._event_windows else {})

    def _start_window(self) -> None:
        self._from_step, self._from_seconds, self._examples = self.step, self._clock.training_seconds(), 0
