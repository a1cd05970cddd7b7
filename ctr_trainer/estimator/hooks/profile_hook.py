"""Profiles steps: the time of each phase of a step and of its session run, and a timeline for viewers."""

import dataclasses
import json
import logging
import math
import os
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.step_hook import StepHook
from ctr_trainer.estimator.hooks.traces import chrome_trace, seconds_by_purpose
from ctr_trainer.system.measuring.clock import PHASES, STEP_TITLES, Clock, since_1970

_log = logging.getLogger(__name__)
# Without `profile_steps`: number of first steps that are not traced, steps from one trace to the next, and its steps.
_FIRST_STEPS, _EVERY_STEPS, _STEPS = 20, 1000, 4


@dataclasses.dataclass
class _Window:
    """The steps after the profiled ones: their number, and the seconds of each phase when it began and at its end."""

    begin: dict[str, float]
    end: dict[str, float]
    steps: int = 0
    squares: float = 0.0

    @property
    def seconds(self) -> float:
        """The seconds of all phases but `tracing`."""
        return sum(self.end[name] - self.begin[name] for name in PHASES if name != "tracing")


class ProfileHook(StepHook):
    """Makes TensorFlow trace the operations of some steps, to measure the share of each phase in `session`.

    A traced step takes longer, so only its proportions are used. Let p_i be the seconds of purpose i in a traced step,
    and R the mean seconds of the session in the steps after the last traced one. Then a phase inside the graph takes

        R * sum p_i / sum_j p_j     over all traced steps but the first, in which TensorFlow prepares traced runs

    With `directory`, the hook writes `trace.json`, a Chrome trace (chrome://tracing, ui.perfetto.dev): the phases of
    the training thread in the profiled steps, one row per phase, and every operation of the second profiled step.

    Caveat: all ranks must profile the same steps, because a traced step is slower. If a training ends before the last
    one, the timeline of the steps so far is written, and there are no phases.

    Args:
      clock: `Clock` of the training thread.
      first, last: global steps, 1 <= first < last; None to trace four steps of each thousand, for `share`.
      gpu: whether to trace GPUs too, which takes more time.
      directory: directory for this rank only, created if it does not exist; None to write nothing.
    """

    phase = "tracing"

    def __init__(
        self,
        clock: Clock,
        first: int | None = None,
        last: int | None = None,
        gpu: bool = False,
        directory: str | None = None,
    ) -> None:
        super().__init__()
        if first is not None and not (last is not None and 1 <= first < last):
            raise ValueError(f"first {first} and last {last} are not two steps in this order, from 1 on")
        self._clock, self._first, self._last, self._directory = clock, first, last, directory
        level = tf1.RunOptions.FULL_TRACE if gpu else tf1.RunOptions.SOFTWARE_TRACE
        self._arguments = tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=level))
        self._traced = 0
        self._purposes: dict[str, float] = {}
        self._step_stats: Any = None  # Of the step whose operations the timeline shows.
        self._window: _Window | None = None

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._start = self.step
        if self._first is not None and self.step >= self._first:
            _log.warning("steps %d to %d are not profiled: step %d has already run", self._first, self._last, self.step)
        self._keep_spans()

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        self._is_traced = self._traces(self.step + 1)
        return self._arguments if self._is_traced else None

    def after_micro_batch(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        if self._is_traced and not self._is_first:
            with self._clock.within(self.phase):
                began, _ = self._clock.last["session"]
                self._step_stats = self._step_stats or run_values.run_metadata.step_stats
                for name, value in seconds_by_purpose(run_values.run_metadata.step_stats, since_1970(began)).items():
                    self._purposes[name] = self._purposes.get(name, 0.0) + value

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.after_micro_batch(run_context, run_values)
        self._traced += self._is_traced
        self._keep_spans()
        with self._clock.within(self.phase):  # All other phases have ended.
            if self.step == self._last and self._traced:
                self._write()
                self._window = _Window(dict(self._clock.seconds), dict(self._clock.seconds))
            elif self._window is not None:
                before = self._window.seconds
                self._window.end, self._window.steps = dict(self._clock.seconds), self._window.steps + 1
                self._window.squares += (self._window.seconds - before) ** 2

    def end(self, session: tf1.Session) -> None:
        self._write()

    def share(self, purpose: str) -> float:
        """Returns the share of a purpose in the session's time; 0 if no traced step has counted."""
        total = sum(self._purposes.values())
        return self._purposes.get(purpose, 0.0) / total if total else 0.0

    def results(self) -> dict[str, Any] | None:
        """Returns the time of each phase of a step, for JSON; None if no step followed the profiled ones.

        All values except the counts describe a step that is not traced: the mean `step_seconds` and their standard
        deviation, the `seconds` of each phase of `clock.STEP_TITLES`, and the share of a step for which these account.
        """
        window = self._window
        if window is None or not window.steps or not self._purposes:
            return None
        of_step = {name: (window.end[name] - window.begin[name]) / window.steps for name in PHASES}
        session = of_step.pop("session")
        seconds = {name: session * self.share(name) for name in self._purposes}
        for name, value in of_step.items():
            if value and (key := PHASES[name].step_name):
                seconds[key] = seconds.get(key, 0.0) + value
        accounted, step = sum(seconds.values()), window.seconds / window.steps
        return {
            "steps": window.steps,
            "traced_steps": self._traced - 1,
            "step_seconds": step,
            "step_deviation": math.sqrt(max(window.squares / window.steps - step**2, 0.0)),
            "seconds": {name: seconds[name] for name in STEP_TITLES if name in seconds},
            "accounted": accounted / step,
        }

    @property
    def _is_first(self) -> bool:
        """Whether the step that is traced is the first one, which prepares traced runs."""
        return not self._traced

    def _traces(self, step: int) -> bool:
        if self._first is not None and self._last is not None:
            return self._first <= step <= self._last
        return step - self._start >= _FIRST_STEPS and (step - self._start - _FIRST_STEPS) % _EVERY_STEPS < _STEPS

    def _keep_spans(self) -> None:
        """Records spans from the end of the previous step on, because a step begins with the reading of its batch."""
        if self.step + 1 == self._first and self._directory:
            self._clock.spans = []

    def _write(self) -> None:
        if self._clock.spans is None or self._directory is None:
            return
        spans, self._clock.spans = self._clock.spans, None
        path = os.path.join(self._directory, "trace.json")
        os.makedirs(self._directory, exist_ok=True)
        with open(path, "w") as file:
            json.dump(chrome_trace(spans, self._step_stats), file)
        _log.info("profiled steps %d to %d: %s", self._first, self.step, path)


def profile_hook(clock: Clock, steps: tuple[int, ...], gpu: bool, directory: str) -> ProfileHook:
    """Returns the hook for `RunConfig.profile_steps`; see `ProfileHook`."""
    if not steps:
        return ProfileHook(clock, gpu=gpu)
    first, last = steps
    return ProfileHook(clock, first, last, gpu, directory)
