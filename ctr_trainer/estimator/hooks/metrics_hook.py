"""Sums the figures of a training, and passes them on as lines."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.ending_hooks import StepHook
from ctr_trainer.estimator.run_length import EverySteps
from ctr_trainer.models.metrics import click_metrics
from ctr_trainer.models.metrics.auc import copc, roc_auc
from ctr_trainer.models.metrics.click_metrics import LINES_SCORES, ClickMetrics, Line, WorkerFigures, metric_name
from ctr_trainer.models.metrics.score_sums import ScoreSums
from ctr_trainer.system.measuring.clock import Clock

_OF_EVENT_WINDOWS = {"auc": "auc_event_window", "xentropy_mean": "xentropy_event_window", "copc": "copc_event_window"}


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
        self._metrics: dict[str, ClickMetrics] = {}
        self._number: int | None = None

    def add(self, metrics: Mapping[str, ClickMetrics]) -> dict[str, float]:
        """Adds the metrics of a line, by label. If the line ends a window, returns the window's figures, else {}."""
        for label, each in metrics.items():
            self._metrics.setdefault(label, ClickMetrics(LINES_SCORES)).add_sums(each.sums())
        now = self._event_seconds()
        before, self._number = self._number, int(now // self._window_secs) if now else self._number
        if before is None or self._number == before:
            return {}
        ended, self._metrics = self._metrics, {}
        return _figures(ended, _OF_EVENT_WINDOWS)


def _figures(metrics: Mapping[str, ClickMetrics], names: dict[str, str]) -> dict[str, float]:
    """Returns the figures of each label in `names`, a dict of old -> new name."""
    found: dict[str, float] = {}
    for label, each in metrics.items():
        values = each.results()
        values["copc"] = copc(values["real_mean"], values["prob_mean"])
        found |= {metric_name(new, label): values[old] for old, new in names.items()}
    return found


class MetricsHook(StepHook):
    """Passes a `Line` to its takers every N steps: the AUC since the start, and the means since the previous line.

    Args:
      tensors: dict of label -> dict of `logits`, `labels`, `weights`, float32[B], see `metric_tensors`. {} for a model
        without logits, whose lines have the loss, and whose number of examples is not known.
      loss: scalar tensor.
      takers: get the lines, in this order.
      clock: measures the rates.
      every_n_steps: N; after each multiple of N, and after the last step.
      merge: f(vector of `click_metrics.pack`) -> (vectors of the workers that the line describes, their name). A
        collective.
      weight: scalar tensor, the weight of this worker's batch for a model without logits; None for 1.
      own: f() -> `WorkerFigures` at the last step, to which the hook adds the learning rate and the rates.
      examples: f() -> the number of examples fed so far; None to count those with a weight.
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
        every_n_steps: int,
        merge: Callable[[np.ndarray], tuple[np.ndarray, str]] = lambda vector: (vector[None], ""),
        weight: tf.Tensor | None = None,
        own: Callable[[], WorkerFigures] = WorkerFigures,
        examples: Callable[[], int] | None = None,
        learning_rate: tf.Tensor | None = None,
        of_windows: bool = False,
        event_windows: EventWindows | None = None,
    ) -> None:
        self._of_windows, self._event_windows = of_windows, event_windows
        self._period, self._takers, self._clock = EverySteps(every_n_steps), takers, clock
        self._merge, self._own, self._weighed = merge, own, 0
        self._examples = examples or (lambda: self._weighed)
        further = {"weight": weight, "learning_rate": learning_rate}
        fetches = {"loss": loss, "labels": tensors}
        fetches |= {name: tensor for name, tensor in further.items() if tensor is not None}
        self._arguments = tf1.train.SessionRunArgs(fetches)  # The same object for each step.
        self._metrics = {label: ClickMetrics(LINES_SCORES) for label in tensors}
        self._since_start = {label: ScoreSums(LINES_SCORES) for label in tensors}

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        for taker in self._takers:
            taker.start(self.step)
        self._start_window()

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return self._arguments

    def after_batch(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        weights = run_values.results.get("weight")
        for label, values in run_values.results["labels"].items():
            weights = values["weights"]
            self._metrics[label].update(values["logits"], values["labels"], weights)
        if self._metrics:
            self._weighed += int(np.count_nonzero(weights))
        self._last, self._weights = run_values.results, weights

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._period.is_due(self.step):
            self._end_window()
        for taker in self._takers:
            taker.stepped(self.step)

    def end(self, session: tf1.Session) -> None:
        self.finish()

    def finish(self) -> None:
        """Gives the last line, and closes the takers. A collective if the lines are merged."""
        if self.step > self._from_step:
            self._end_window()
        self.close()

    def close(self) -> None:
        """Closes the takers. Also called after an error."""
        for taker in self._takers:
            taker.close()

    def auc(self) -> dict[str, float]:
        """Returns a dict of `auc` or `auc/<label>` -> AUC of the examples of all lines since the start."""
        return {metric_name("auc", label): roc_auc(*own.sums.T[1:3]) for label, own in self._since_start.items()}

    def _start_window(self) -> None:
        self._from_step, self._from_seconds = self.step, self._clock.training_seconds()
        self._from_examples = self._examples()

    def _end_window(self) -> None:
        """Gives the line of the steps since the previous one."""
        seconds, lr = self._clock.training_seconds() - self._from_seconds, self._last.get("learning_rate")
        weight = 1.0 if self._weights is None else float(self._weights.sum(dtype=np.float64))
        own = dataclasses.replace(
            self._own(),
            lr=None if lr is None else float(lr),
            steps_per_sec=(self.step - self._from_step) / seconds,
            examples_per_sec=(self._examples() - self._from_examples) / seconds,
        )
        vectors, of = self._merge(click_metrics.pack(self._metrics, float(np.mean(self._last["loss"])), weight, own))
        line, metrics = click_metrics.unpack(vectors, list(self._metrics), self.step, of, own)
        for label, each in metrics.items():
            self._since_start[label].add(each.scores.sums)
            self._metrics[label] = ClickMetrics(LINES_SCORES)
        self._start_window()
        values = line.values | self.auc()
        if self._of_windows:
            values |= _figures(metrics, {"auc": "auc_window", "copc": "copc"})
            values |= self._event_windows.add(metrics) if self._event_windows else {}
            # The means of a window without examples are NaN, which JSON cannot represent.
            values = {name: value for name, value in values.items() if value == value}
        line = dataclasses.replace(line, values=values)
        for taker in self._takers:
            taker.take(line)
