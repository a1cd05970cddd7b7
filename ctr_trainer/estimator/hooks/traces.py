"""What the traces of steps show: the time of each purpose in the graph, and a timeline for viewers."""

import json
import re
from typing import Any

from ctr_trainer.system.measuring.clock import PHASES, TABLE, since_1970

_HOST = 1_000_000  # Process number in the trace, above the numbers that TensorFlow assigns to its devices.
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
