"""The phases of a training: what the training thread may be doing, and the name of each phase in every view."""

import dataclasses

_RANKS, _SERVICE, _BOTH = ("ranks",), ("service",), ("ranks", "service")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of the training thread; a row of the table below.

    Each view has one unit: seconds in the summary, milliseconds in tables, microseconds in the log and in traces.

    Attributes:
      name: name in `phase_seconds` of the summary, in traces and in heartbeats.
      title: name in tables and in the summary's lines.
      step_name: name in `phases` of --phase_steps and in the benches; None for a phase outside of steps.
      log_name: name of the phase's percentiles in the log; "" for no percentiles.
      operation: name in the log of the operations, in any thread, that the phase waits for or makes; "" for none.
      in_graph: whether the phase is a part of `session` that only a traced step can measure; if not, the thread enters
        it.
      is_training: whether the phase counts as training time in `it/sec`, `global_step/sec` and `examples_per_sec`.
      waits_for: whom a rank in this phase may be waiting for: `ranks`, the other ranks; `service`, the embedding
        service, or a rank that waits for the service.
    """

    name: str
    title: str
    step_name: str | None
    log_name: str = ""
    operation: str = ""
    in_graph: bool = False
    is_training: bool = True
    waits_for: tuple[str, ...] = ()


# In the order of a step. `start` is the time before the first step; `hooks` are metrics, logs, summaries and hooks of
# users; `tracing` is the time of the measurement itself; `loop` is the time from a step's last hook to the next step's
# first hook.
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
# The phases that the thread enters, one at a time.
PHASES = {phase.name: phase for phase in TABLE if not phase.in_graph}
TRAINING = tuple(name for name, phase in PHASES.items() if phase.is_training)
TITLES = {phase.name: phase.title for phase in TABLE}
# Name in a step -> title. These phases, without the loop, add up to the step's time.
STEP_TITLES = {phase.step_name: phase.title for phase in TABLE if phase.step_name}


def operation(phase: str) -> str:
    """Returns the name in the log of a phase's operations, such as `OpsPushGrad` for `update`."""
    return PHASES[phase].operation
