"""Profiles a range of steps."""

import json
import logging
import os
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.step_hook import Order, StepHook
from ctr_trainer.system.measuring.clock import PHASES, Clock, since_1970

_HOST = 1_000_000  # Process number in the trace, above the numbers that TensorFlow assigns to its devices.
_log = logging.getLogger(__name__)


def chrome_trace(spans: list[tuple[str, float, float]], step_stats: Any) -> dict[str, Any]:
    """Creates a Chrome trace (Trace Event Format, JSON Object Format), with a row per phase and rows for each device.

    Args:
      spans: (phase, began, ended) of each time span, see `Clock.spans`.
      step_stats: `step_stats` of a step's `tf.compat.v1.RunMetadata`; None for no operations.

    Returns:
      dict that JSON can represent.
    """
    from tensorflow.python.client import timeline

    events = []
    if step_stats is not None:
        traced = timeline.Timeline(step_stats).generate_chrome_trace_format(show_memory=False)
        events += json.loads(traced)["traceEvents"]
    events.append(_named("process_name", "training thread"))
    numbers = {phase: number for number, phase in enumerate(PHASES)}
    events += [_named("thread_name", phase, number) for phase, number in numbers.items()]
    offset = since_1970(0.0)
    for phase, began, ended in spans:
        when = {"ts": round((began + offset) * 1e6), "dur": round((ended - began) * 1e6)}
        events.append({"ph": "X", "cat": "Phase", "name": phase, "pid": _HOST, "tid": numbers[phase], **when})
    return {"traceEvents": events}


def _named(what: str, name: str, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _HOST, "tid": thread, "args": {"name": name}}


class ProfileHook(StepHook):
    """Profiles steps `first` to `last` of this rank, and writes files for viewers.

    - `trace.json`, a Chrome trace (chrome://tracing, ui.perfetto.dev): the phases of the training thread in all
      these steps, one row per phase, and every operation of step `first`, which TensorFlow traces fully;
    - `plugins/profile/...`, for TensorBoard's profiler: steps `first` + 1 to `last`, because the two tracers cannot run
      at the same time.

    Caveat: profiled steps are slower, and each rank keeps its profile in memory until it is written. If training ends
    before `last`, the profile of the steps so far is written. If training resumes at `first` or later, nothing is
    profiled.

    Args:
      directory: directory for this rank only; created if it does not exist.
      clock: `Clock` of the training thread.
      first, last: global steps, 1 <= first < last.
    """

    phase, order = "tracing", Order.WATCH

    def __init__(self, directory: str, clock: Clock, first: int, last: int) -> None:
        super().__init__()
        if not 1 <= first < last:
            raise ValueError(f"first {first} and last {last} are not two steps in this order, from 1 on")
        self._directory, self._clock, self._first, self._last = directory, clock, first, last
        self._step_stats: Any = None
        self._step_trace: Any = None
        self._profiling = False

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        if self.step >= self._first:
            _log.warning("steps %d to %d are not profiled: step %d has already run", self._first, self._last, self.step)

        self._keep_spans()

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        if self.step + 1 == self._first:
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE))
        if self._profiling and self._step_trace is None:
            # TensorBoard recognizes the steps by these traces.
            self._step_trace = tf.profiler.experimental.Trace("train", step_num=self.step + 1, _r=1)
            self._step_trace.__enter__()
        return None

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._keep_spans()
        if self._step_trace is not None:
            self._step_trace.__exit__(None, None, None)
            self._step_trace = None
        if self.step == self._first:
            self._step_stats = run_values.run_metadata.step_stats
            with self._clock.within(self.phase):
                os.makedirs(self._directory, exist_ok=True)
                tf.profiler.experimental.start(self._directory)
            self._profiling = True
        elif self.step == self._last:
            self._write()

    def end(self, session: tf1.Session) -> None:
        self._write()

    def close(self) -> None:
        """Discards a profile in progress after the training has failed."""
        self._clock.spans = None
        if self._profiling:
            self._profiling = False
            tf.profiler.experimental.stop(save=False)

    def _keep_spans(self) -> None:
        """Records spans from the end of the previous step on, as `before_run` is called after the batch was read."""
        if self.step + 1 == self._first:
            self._clock.spans = []

    def _write(self) -> None:
        if not self._profiling:
            return
        self._profiling = False
        path = os.path.join(self._directory, "trace.json")
        with self._clock.within(self.phase):
            spans, self._clock.spans = self._clock.spans or [], None
            tf.profiler.experimental.stop()
            with open(path, "w") as file:
                json.dump(chrome_trace(spans, self._step_stats), file)
        self._step_stats = None
        _log.info(
            "profiled steps %d to %d: %s, and for TensorBoard --logdir=%s",
            self._first,
            self.step,
            path,
            os.path.dirname(self._directory),
        )
