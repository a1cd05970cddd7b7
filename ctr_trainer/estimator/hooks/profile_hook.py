"""Profiles steps: the time of each phase of a step and of its session run, and a timeline for viewers."""

import json
import logging
import math
import os
import re
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.ending_hooks import StepHook
from ctr_trainer.system.measuring.clock import PHASES, STEP_TITLES, Clock, since_1970

_HOST = 1_000_000  # Process number in the trace, above the numbers that TensorFlow assigns to its devices.
# Purposes, with the patterns of the name parts that indicate them. The first pattern that matches a part counts.
_SCOPES = (
    ("exchange", re.compile(r"^(dense_exchange(_\d+)?|Horovod\w*|Distributed\w*)$")),
    ("backward", re.compile(r"^gradients(_\d+)?$")),
    ("dense_update", re.compile(r"^(dense_update(_\d+)?|learning_rate\w*)$")),
    ("loss", re.compile(r"^loss(_\d+)?$")),
)
_TRANSFERS = re.compile(r"^(_Send|_Recv|_HostSend|_HostRecv|_Arg|_Retval|MEMCPY)")
_UPDATES = re.compile(r"^(ResourceApply|ResourceSparseApply|Assign(Add|Sub)?VariableOp)")
_WAITS = re.compile(r"^(Horovod|_Recv|_HostRecv)")
_HOST_SUM = "host_sum."  # Part of the names that `dense_exchange.all_sum` gives to sums through shared memory.
_OPERATION = re.compile(r"= *([A-Za-z_]\w*)\(")
_log = logging.getLogger(__name__)
# Without `profile_steps`: number of first steps that are not traced, steps from one trace to the next, and its steps.
_FIRST_STEPS, _EVERY_STEPS, _STEPS = 20, 1000, 4


def purpose(name: str, operation: str) -> str:
    """Returns the purpose of a node, from the scopes in its name.

    The package's training operation creates the scopes `dense_exchange` and `dense_update`, its heads create `loss`,
    and TensorFlow creates `gradients`. A node in none of these scopes is `forward`.

    Args:
      name: such as `gradients/mlp/MatMul_grad/MatMul`.
      operation: such as `MatMul`.
    """
    if _TRANSFERS.match(operation) or _TRANSFERS.match(name):
        return "input_to_device"
    parts = name.split("/")
    for found, pattern in _SCOPES:
        if any(pattern.match(part) for part in parts):
            return found
    if operation.startswith("Horovod"):
        return "exchange"
    return "dense_update" if _UPDATES.match(operation) else "forward"


def seconds_by_purpose(step_stats: Any, began: float) -> dict[str, float]:
    """Divides the time of one traced run among the purposes of its operations.

    - While operations run, the time is divided equally among the running operations and added to their purposes.
    - An operation that only waits for another rank or device counts only while nothing else runs, so an exchange during
      the backward pass costs nothing.
    - While no operation runs, the next one is being scheduled, and the time is added to its purpose. After a wait, the
      time is added to the purpose of the wait, because the thread has yet to wake up.
    - The time from `began` to the first operation is added to `input_to_device`, because the feeds are transferred.
    - The time after the last operation is left out, because TensorFlow then collects the trace.

    Args:
      step_stats: `step_stats` of the run's `RunMetadata`.
      began: time when the run was requested, in seconds since 1970.

    Returns:
      dict of purpose -> seconds.
    """
    events = []
    for device in step_stats.dev_stats:
        if "/stream:" in device.device and "stream:all" not in device.device:
            continue  # This device lists a GPU's operations a second time, by stream.
        for node in device.node_stats:
            start = node.all_start_nanos or 1000 * node.all_start_micros
            end = start + (node.all_end_rel_nanos or 1000 * node.all_end_rel_micros)
            found = _OPERATION.search(node.timeline_label)
            operation = found.group(1) if found else node.node_name.rpartition(":")[2]
            waits = bool(_WAITS.match(operation)) or _HOST_SUM in node.node_name
            kind = (purpose(node.node_name.partition(":")[0], operation), waits)
            events += [(start, 1, kind), (max(end, start), -1, kind)]
    if not events:
        return {}
    events.sort(key=lambda event: event[0])
    nanos = {"input_to_device": max(events[0][0] - 1e9 * began, 0.0)}
    running: dict[tuple[str, bool], int] = {}
    before, last = events[0][0], None
    for time, change, kind in events:
        active = {k: n for k, n in running.items() if n > 0}
        working = {k: n for k, n in active.items() if not k[1]} or active
        if not working:
            working = {last if last is not None and last[1] else kind: 1}
        share = (time - before) / sum(working.values())
        for (name, _), count in working.items():
            nanos[name] = nanos.get(name, 0.0) + share * count
        running[kind] = running.get(kind, 0) + change
        before, last = time, kind
    return {name: value / 1e9 for name, value in nanos.items()}


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
        if self._first is not None and self._last is not None:
            self._is_traced = self._first <= self.step + 1 <= self._last
        else:
            since = self.step + 1 - self._start - _FIRST_STEPS
            self._is_traced = since >= 0 and since % _EVERY_STEPS < _STEPS
        return self._arguments if self._is_traced else None

    def after_batch(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._is_traced and self._traced:
            with self._clock.within("tracing"):
                began, _ = self._clock.last["session"]
                self._step_stats = self._step_stats or run_values.run_metadata.step_stats
                for name, value in seconds_by_purpose(run_values.run_metadata.step_stats, since_1970(began)).items():
                    self._purposes[name] = self._purposes.get(name, 0.0) + value

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
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
