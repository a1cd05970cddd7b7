"""The phases of a training, and a clock that shows the current phase of its thread and the time spent in each phase."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from ctr_trainer.system.measuring.latency import Latency

_RANKS, _SERVICE, _BOTH = ("ranks",), ("service",), ("ranks", "service")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of the training thread, which is a row of the table below.

    Times are in seconds in the summary, in milliseconds in tables, and in microseconds in the log and in traces.

    Attributes:
      name: name in `phase_seconds` of the summary, in traces and in `RankState`.
      title: name in tables and in the summary's lines.
      step_name: name in `phases` of --profile_steps and in the benchmarks; None for a phase outside of steps.
      log_name: name of the phase's percentiles in the log; "" for no percentiles.
      operation: log name of the operations, in any thread, that the phase waits for or performs; "" for none.
      in_graph: whether the phase is a part of `session` that only a traced step can measure. The thread enters all
        other phases.
      is_training: whether the phase counts as training time in `it/sec`, `global_step/sec` and `examples_per_sec`.
      waits_for: what a rank in this phase may be waiting for: `ranks` for the other ranks; `service` for the embedding
        service, or for a rank that waits for the service.
    """

    name: str
    title: str
    step_name: str | None
    log_name: str = ""
    operation: str = ""
    in_graph: bool = False
    is_training: bool = True
    waits_for: tuple[str, ...] = ()


# In the order of a step. `start` is the time before the first step. `dense_sync` includes the meetings of the ranks.
# `hooks` includes metrics, logs, summaries and the user's hooks. `tracing` is the time of the measurement itself.
# `loop` is the time from a step's last hook to the next step's first hook, without the phases between them.
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
# The phases that the thread enters, one after another.
PHASES = {phase.name: phase for phase in TABLE if not phase.in_graph}
TRAINING = tuple(name for name, phase in PHASES.items() if phase.is_training)
TITLES = {phase.name: phase.title for phase in TABLE}
_NOT_TRAINING = tuple(name for name, phase in PHASES.items() if not phase.is_training)
# `step_name` -> `title`. The times of these phases add up to the step's time without the loop.
STEP_TITLES = {phase.step_name: phase.title for phase in TABLE if phase.step_name}


class Clock:
    """The current phase of the training thread, and the seconds that the thread has spent in each phase.

    The thread is always in exactly one phase: entering a phase pauses the enclosing phase. Therefore the seconds of all
    phases add up to the time since the clock was created. A stretch is the time from when the thread enters or returns
    to a phase until it leaves the phase. Only one thread may enter phases; other threads may read.

    Attributes:
      phase: name of the current phase.
      began: time at which the current stretch began, by `time.perf_counter`.
      step: current global step of the thread.
      seconds: dict of phase -> total seconds of its completed stretches.
      last: dict of phase -> (began, ended) of its last completed stretch.
      latencies: list of `Latency`, the percentiles of the stretches of each phase with a `log_name`.
      spans: list to which each completed stretch is appended as (phase, began, ended); None to keep no stretches.
    """

    def __init__(self) -> None:
        self.phase, self.step = next(iter(PHASES)), 0
        self._made = self.began = time.perf_counter()
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.last = dict.fromkeys(PHASES, (self.began, self.began))
        self._latencies = {name: Latency(phase.log_name) for name, phase in PHASES.items() if phase.log_name}
        self.latencies = list(self._latencies.values())
        self.spans: list[tuple[str, float, float]] | None = None

    def enter(self, phase: str) -> str:
        """Ends the current phase and enters another; returns the name of the phase that ended."""
        now, before, began = time.perf_counter(), self.phase, self.began
        self.seconds[before] += now - began
        self.last[before] = began, now
        if before in self._latencies:
            self._latencies[before].record(1e6 * (now - began))
        if self.spans is not None:
            self.spans.append((before, began, now))
        self.phase, self.began = phase, now
        return before

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Enters `phase` for the block, and then returns to the previous phase."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def training_seconds(self) -> float:
        """Returns the seconds of training since the first step began, without evaluations."""
        now = time.perf_counter()
        other = sum(self.seconds[name] for name in _NOT_TRAINING) + (now - self.began) * (self.phase in _NOT_TRAINING)
        return now - self._made - other

    def lasted(self) -> float:
        """Returns the seconds since the thread entered or returned to the current phase."""
        return time.perf_counter() - self.began


def since_1970(at: float) -> float:
    """Converts a time of the clock to seconds since 1970, as in TensorFlow's traces."""
    return at + time.time() - time.perf_counter()
