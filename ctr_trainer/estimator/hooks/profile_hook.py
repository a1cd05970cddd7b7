"""Profiles steps: the time of each phase of a step and of its session run, and a timeline for viewers."""

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

    def __init__(
        self,
        clock: Clock,
        first: int | None = None,
        last: int | None = None,
        gpu: bool = False,
        directory: str | None = None,
    ) -> None:
        super().__init__()
        self._clock, self._first, self._last, self._directory = clock, first, last, directory
        level = tf1.RunOptions.FULL_TRACE if gpu else tf1.RunOptions.SOFTWARE_TRACE
        self._arguments = tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=level))
        self._traced = 0
        self._purposes: dict[str, float] = {}
        self._step_stats: Any = None  # Of the step whose operations the timeline shows.
        # The steps after the profiled ones: the seconds of each phase when they began and at the end of the last one.
        self._since: dict[str, float] = {}
        self._until: dict[str, float] = {}
        self._steps, self._squares = 0, 0.0

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
        if self._is_traced and self._traced:
            with self._clock.within("tracing"):
                began, _ = self._clock.last["session"]
                self._step_stats = self._step_stats or run_values.run_metadata.step_stats
                for name, value in seconds_by_purpose(run_values.run_metadata.step_stats, since_1970(began)).items():
                    self._purposes[name] = self._purposes.get(name, 0.0) + value

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.after_micro_batch(run_context, run_values)
        self._traced += self._is_traced
        self._keep_spans()
        with self._clock.within("tracing"):  # All other phases have ended.
            if self.step == self._last and self._traced:
                self._write()
                self._since = self._until = dict(self._clock.seconds)
            elif self._since:
                before, self._until = self._until, dict(self._clock.seconds)
                self._steps, self._squares = self._steps + 1, self._squares + _seconds(before, self._until) ** 2

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
        if not (self._steps and self._purposes):
            return None
        of_step = {name: (self._until[name] - self._since[name]) / self._steps for name in PHASES}
        session = of_step.pop("session")
        seconds = {name: session * self.share(name) for name in self._purposes}
        for name, value in of_step.items():
            if value and (key := PHASES[name].step_name):
                seconds[key] = seconds.get(key, 0.0) + value
        step = _seconds(self._since, self._until) / self._steps
        return {
            "steps": self._steps,
            "traced_steps": self._traced - 1,
            "step_seconds": step,
            "step_deviation": math.sqrt(max(self._squares / self._steps - step**2, 0.0)),
            "seconds": {name: seconds[name] for name in STEP_TITLES if name in seconds},
            "accounted": sum(seconds.values()) / step,
        }

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


def _seconds(since: dict[str, float], until: dict[str, float]) -> float:
    """Returns the seconds of all phases but `tracing` between two readings of a clock."""
    return sum(until[name] - since[name] for name in PHASES if name != "tracing")
