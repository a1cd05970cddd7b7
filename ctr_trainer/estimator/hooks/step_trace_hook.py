"""Measures the time of each phase of a step and of its session run, from the traces of some steps."""

import math
import re
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.step_hook import Order, StepHook
from ctr_trainer.system.measuring.clock import PHASES, STEP_TITLES, TABLE, Clock, since_1970

# The purposes of a node: the phases in the graph.
PURPOSES = tuple(phase.name for phase in TABLE if phase.in_graph)
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


class StepTraceHook(StepHook):
    """Makes TensorFlow trace the operations of some steps, to measure the share of each phase in `session`.

    A traced step takes longer, so only its proportions are used. Let p_i be the seconds of purpose i in a traced step,
    and R the mean seconds of the session in a step without a trace. Then a phase inside the graph takes

        R * sum p_i / sum_j p_j     over all traced steps

    `accounted` is the sum of all phases divided by the step's time, which also includes the loop between session runs.

    The first `skip_steps` steps do not count. The last of them is traced as a warm-up, in which TensorFlow prepares
    traced runs. Then the `skip_steps`-th step after it is traced, and after that every `every_n_steps`-th step; before
    the `every_n_steps`-th step also those at 2, 4, 8, ... times `skip_steps`, so that a short run has some.

    All ranks must use the same periods, because a traced step is slower.

    Args:
      clock: `Clock` of the training thread.
      skip_steps: at least 2.
      every_n_steps: at least 2; one step in `every_n_steps` is traced.
      gpu: whether to trace GPUs too, which takes more time.
    """

    phase, order = "tracing", Order.TRACE

    def __init__(self, clock: Clock, skip_steps: int, every_n_steps: int, gpu: bool = False) -> None:
        super().__init__()
        if min(skip_steps, every_n_steps) < 2:
            raise ValueError(f"skip_steps {skip_steps} and every_n_steps {every_n_steps} must be at least 2")
        self._clock, self._skip_steps, self._every_n_steps = clock, skip_steps, every_n_steps
        level = tf1.RunOptions.FULL_TRACE if gpu else tf1.RunOptions.SOFTWARE_TRACE
        self._arguments = tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=level))
        self._done = self._traced = 0
        # Of the steps that count: the seconds of the session in traced steps; the sum of the seconds of untraced steps,
        # and the sum of their squares.
        self._traced_session = self._untraced = self._squares = 0.0
        self._purposes: dict[str, float] = {}
        self._ended = 0.0
        self._from: dict[str, float] = {}
        self._until: dict[str, float] = {}

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        self._is_traced = self._is_due()
        return self._arguments if self._is_traced else None

    def after_micro_batch(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        if self._is_traced and self._done >= self._skip_steps:
            with self._clock.within(self.phase):
                self._add(run_values.run_metadata.step_stats)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.after_micro_batch(run_context, run_values)
        with self._clock.within(self.phase):
            self._end_step()

    def share(self, purpose: str) -> float:
        """Returns the share of a purpose in the session's time; 0 if no traced step has counted."""
        total = sum(self._purposes.values())
        return self._purposes.get(purpose, 0.0) / total if total else 0.0

    def results(self) -> dict[str, Any] | None:
        """Returns the time of each phase of a step, for JSON; None if the run was too short.

        All values except the counts describe a step that is not traced: the mean `step_seconds` and their standard
        deviation, the `seconds` of each phase of `clock.STEP_TITLES`, and the share of a step for which these account.
        """
        steps = self._done - self._skip_steps
        if not self._traced or steps == self._traced:
            return None
        untraced = steps - self._traced
        of_step = {name: (self._until[name] - self._from[name]) / steps for name in PHASES}
        session = (steps * of_step.pop("session") - self._traced_session) / untraced
        seconds = {name: session * self.share(name) for name in self._purposes}
        for name, value in of_step.items():
            if value and (key := PHASES[name].step_name):
                seconds[key] = seconds.get(key, 0.0) + value
        accounted = sum(seconds.values())
        step, variance = accounted + of_step["loop"], self._squares / untraced - (self._untraced / untraced) ** 2
        return {
            "steps": steps,
            "traced_steps": self._traced,
            "step_seconds": step,
            "step_deviation": math.sqrt(max(variance, 0.0)),
            "seconds": {name: seconds[name] for name in STEP_TITLES if name in seconds},
            "accounted": accounted / step,
        }

    def _is_due(self) -> bool:
        since = self._done + 1 - self._skip_steps
        times, rest = divmod(since, self._skip_steps)
        is_early = not rest and 0 < since < self._every_n_steps and times & (times - 1) == 0
        return (
            since == 0
            or is_early
            or (since >= self._skip_steps and (since - self._skip_steps) % self._every_n_steps == 0)
        )

    def _add(self, step_stats: Any) -> None:
        began, _ = self._clock.last["session"]
        for name, value in seconds_by_purpose(step_stats, since_1970(began)).items():
            self._purposes[name] = self._purposes.get(name, 0.0) + value

    def _end_step(self) -> None:
        """Records the times of a step. Called within the phase `tracing`, so that all other phases have ended."""
        seconds = dict(self._clock.seconds)
        step = sum(seconds.values()) - seconds["tracing"]
        if self._done >= self._skip_steps:
            if self._is_traced:
                self._traced += 1
                self._traced_session += seconds["session"] - self._until["session"]
            else:
                self._untraced += step - self._ended
                self._squares += (step - self._ended) ** 2
        self._ended, self._until = step, seconds
        self._done += 1
        if self._done == self._skip_steps:
            self._from = seconds
