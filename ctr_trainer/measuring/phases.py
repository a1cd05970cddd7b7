"""The phases of a training: what the thread of the steps may be doing, and what each view of its time calls it."""

import dataclasses

_RANKS, _SERVICE, _BOTH = ("ranks",), ("service",), ("ranks", "service")


@dataclasses.dataclass(frozen=True)
class Phase:
    """One thing that the time of a step goes to; a row of the table below.

    Each view has one unit: seconds in the summary, milliseconds in tables, microseconds in the log and in traces.

    Attributes:
      name: in `phase_seconds` of the summary, in traces and in heartbeats.
      title: in tables and in the summary's lines.
      step_name: in `phases` of --phase_steps and in the benches; None for what belongs to no step.
      log_name: of its percentiles in the log; "" for none.
      operation: log name of what it stands for: the operations of any thread; "" for none.
      in_graph: whether it is a part of `session`, which only a traced step tells; else the thread enters it.
      is_training: whether it counts as time of training: for `it/sec`, `global_step/sec` and `examples_per_sec`.
      waits_for: whom a rank in it may be waiting for: `ranks`, the others; `service`, the embedding service or a rank
        that waits for it.
    """

    name: str
    title: str
    step_name: str | None
    log_name: str = ""
    operation: str = ""
    in_graph: bool = False
    is_training: bool = True
    waits_for: tuple[str, ...] = ()


# In the order of a step. `start` is all before the first one; `hooks` are metrics, logs, summaries and hooks of users;
# `tracing` is what measuring takes; `loop` is what lies between a step's last hook and the first one of the next.
TABLE = (
    Phase("start", "start", None, is_training=False),
    Phase("read", "read sample", "read_sample", "StepReadWait", "OpsReadSample", waits_for=_SERVICE),
    Phase("lookup", "embedding lookup", "embedding_lookup", "StepLookup", "OpsEmbeddingLookup", waits_for=_SERVICE),
    Phase("feed", "input to device", "input_to_device"),
    Phase("session", "session", None, waits_for=_BOTH),
    Phase("input_to_device", "input to device", "input_to_device", in_graph=True),
    Phase("forward", "forward", "forward", in_graph=True),
    Phase("loss", "loss", "loss", in_graph=True),
    Phase("backward", "backward", "backward", in_graph=True),
    Phase("exchange", "gradient exchange", "exchange", in_graph=True),
    Phase("dense_update", "dense update", "dense_update", in_graph=True),
    Phase("update", "push (row update)", "push", "StepRowUpdate", "OpsPushGrad", waits_for=_SERVICE),
    Phase("sync", "sync", "sync", "StepSyncWait", "OpsParameterSync", waits_for=_BOTH),
    Phase("dense_sync", "dense sync", "dense_sync", waits_for=_RANKS),
    Phase("hooks", "metrics and logs", "hooks"),
    Phase("checkpoint", "checkpoint", "checkpoint", waits_for=_BOTH),
    Phase("evaluation", "evaluation", "evaluation", is_training=False, waits_for=_RANKS),
    Phase("tracing", "tracing", None),
    Phase("loop", "loop", None),
)
# Those that the thread enters, one at a time.
PHASES = {phase.name: phase for phase in TABLE if not phase.in_graph}
TRAINING = tuple(name for name, phase in PHASES.items() if phase.is_training)
TITLES = {phase.name: phase.title for phase in TABLE}
# By name in a step, the title; those of a step add up to it but for the loop.
STEP_TITLES = {phase.step_name: phase.title for phase in TABLE if phase.step_name}


def operation(phase):
    """-> the log name of the operations that a phase stands for, as `OpsPushGrad` of `update`."""
    return PHASES[phase].operation
