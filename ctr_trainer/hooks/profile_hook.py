"""Profiles a stretch of steps."""

import json
import logging
import os

import tensorflow as tf

from ctr_trainer.hooks.step_hook import Order, StepHook
from ctr_trainer.measuring.clock import since_1970
from ctr_trainer.measuring.phases import PHASES

_HOST = 1_000_000  # Process number in the trace, above the numbers that TensorFlow gives to its devices.
tf1 = tf.compat.v1
_log = logging.getLogger(__name__)


def chrome_trace(spans, step_stats):
    """Makes a Chrome trace (Trace Event Format, JSON Object Format), with a row per phase and rows for each device.

    Args:
      spans: list of (phase, began, ended), as `Clock.spans`.
      step_stats: `step_stats` of a step's `tf.compat.v1.RunMetadata`; None for no operations.

    Returns:
      dict that JSON can hold.
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


def _named(what, name, thread=0):
    return {"ph": "M", "name": what, "pid": _HOST, "tid": thread, "args": {"name": name}}


class ProfileHook(StepHook):
    """Writes what steps `first` to `last` did, of this rank, as files that viewers read.

    - `trace.json`, a Chrome trace (chrome://tracing, ui.perfetto.dev): the phases of the training thread in all these
      steps, a row each, and every operation of step `first`, which TensorFlow traces fully;
    - `plugins/profile/...`, for TensorBoard's profiler: steps `first` + 1 to `last`, as the two tracers exclude each
      other.

    Caveat: profiled steps are slower, and each rank keeps its part in memory until it is written. A training that ends
    in between writes what it has; one that goes on behind `first` profiles nothing.

    Args:
      directory: of this rank alone; made where it is not there.
      clock: `Clock` of the training thread.
      first, last: global steps, 1 <= first < last.
    """

    phase, order = "tracing", Order.WATCH

    def __init__(self, directory, clock, first, last):
        super().__init__()
        if not 1 <= first < last:
            raise ValueError(f"first {first} and last {last} are not two steps in this order, from 1 on")
        self._directory, self._clock, self._first, self._last = directory, clock, first, last
        self._step_stats, self._step_trace, self._profiling = None, None, False

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if self.step >= self._first:
            _log.warning("steps %d to %d are not profiled: step %d is made already", self._first, self._last, self.step)

        self._keep_spans()

    def before_run(self, run_context):
        if self.step + 1 == self._first:
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE))
        if self._profiling and self._step_trace is None:
            # What TensorBoard tells the steps by.
            self._step_trace = tf.profiler.experimental.Trace("train", step_num=self.step + 1, _r=1)
            self._step_trace.__enter__()
        return None

    def after_step(self, run_context, run_values):
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

    def end(self, session):
        self._write()

    def close(self):
        """Ends a profile that is being taken, of a training that has failed."""
        self._clock.spans = None
        if self._profiling:
            self._profiling = False
            tf.profiler.experimental.stop(save=False)

    def _keep_spans(self):
        """From the end of the step before on: this hook's `before_run` comes after the batch was read."""
        if self.step + 1 == self._first:
            self._clock.spans = []

    def _write(self):
        if not self._profiling:
            return
        self._profiling = False
        path = os.path.join(self._directory, "trace.json")
        with self._clock.within(self.phase):
            spans, self._clock.spans = self._clock.spans, None
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
