"""The purposes of the operations in a traced session run, and the seconds that each purpose took."""

import re

from ctr_trainer.measuring.phases import TABLE

# The purposes of a node: the phases in the graph.
PURPOSES = tuple(phase.name for phase in TABLE if phase.in_graph)
# Parts of an operation's name and the purpose that they mean. The first part that fits counts.
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


def purpose(name, operation):
    """Finds the purpose of a node by the scopes in its name.

    The package's training operation makes the scopes `dense_exchange` and `dense_update`, its heads make `loss`, and
    TensorFlow makes `gradients`. A node in none of these scopes is `forward`.

    Args:
      name: name of the node, as `gradients/mlp/MatMul_grad/MatMul`.
      operation: type of the node, as `MatMul`.

    Returns:
      one of `PURPOSES`.
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


def seconds_by_purpose(step_stats, began):
    """Shares the time of one traced run out to the purposes of its operations.

    - While operations run, each moment goes in equal parts to the purposes of the running operations.
    - An operation that only waits for another rank or device counts only while nothing else runs: an exchange beside
    the
      backward pass costs nothing.
    - While no operation runs, the next one is being scheduled, and the time goes to its purpose. After a wait the time
      goes to the purpose of the wait, since the thread has yet to wake up.
    - The time from `began` to the first operation goes to `input_to_device`: it is the transfer of the feeds.
    - The time after the last operation is left out: TensorFlow collects the trace then.

    Args:
      step_stats: `step_stats` of the run's `RunMetadata`.
      began: time when the run was asked for, in seconds since 1970.

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
    running, before, last = {}, events[0][0], None
    for time, change, kind in events:
        active = {k: n for k, n in running.items() if n > 0}
        working = {k: n for k, n in active.items() if not k[1]} or active
        if not working:
            working = {last if last is not None and last[1] else kind: 1}
        share = (time - before) / sum(working.values())
        for (found, _), count in working.items():
            nanos[found] = nanos.get(found, 0.0) + share * count
        running[kind] = running.get(kind, 0) + change
        before, last = time, kind
    return {found: value / 1e9 for found, value in nanos.items()}
