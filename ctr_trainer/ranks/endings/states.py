"""What each rank is doing: a small file of each rank, which waiting ranks and the launcher read."""

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time

from ctr_trainer.ranks.notices import ATTEMPT
from ctr_trainer.system.measuring.clock import PHASES, Clock

DIRECTORY = ".ranks"
_BYTES = 512  # All states have this length, so that a write replaces the previous state completely.
_CLOSE_SECONDS = 5.0
_ALONE = {name for name, phase in PHASES.items() if "ranks" not in phase.waits_for}
_SILENT_SECONDS = 5.0
_NAMED = 8
LOST_SECONDS = 60.0
_AGAIN_SECONDS = 1.5


@dataclasses.dataclass(frozen=True)
class RankState:
    """What a rank was doing when it wrote its file.

    Attributes:
      step: the current global step.
      phase: the current phase, one of `clock.PHASES`; `start` before the first step.
      seconds: seconds since the phase began.
      written: time of the write, in seconds since 1970 by the clock of the rank's host. It shows that the rank lives.
      attempt: the launcher's name for this start of the workers; "" without a launcher.
    """

    rank: int
    step: int
    phase: str
    seconds: float
    written: float
    host: str
    attempt: str = ""


class StateFile:
    """Writes the state of this rank to `MODEL_DIR/.ranks/RANK` every `period` seconds, in a thread.

    A file system that hangs blocks only this thread. Raises OSError if the file cannot be created.

    `shared`: whether ranks on other hosts must see the file; if so, each write is flushed to the file server.
    """

    def __init__(self, model_dir: str, rank: int, clock: Clock, shared: bool = False, period: float = 0.5) -> None:
        os.makedirs(os.path.join(model_dir, DIRECTORY), exist_ok=True)
        self._path = os.path.join(model_dir, DIRECTORY, str(rank))
        # Create a new file, so that no rank reads the file of an earlier run.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115, it stays open until `close`
        self._rank, self._clock, self._shared, self._period = rank, clock, shared, period
        self._write()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, name="state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Removes the file, which shows that the rank has left the job in order."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _write(self) -> None:
        clock, host = self._clock, socket.gethostname()
        attempt = os.environ.get(ATTEMPT, "")
        state = RankState(self._rank, clock.step, clock.phase, clock.lasted(), time.time(), host, attempt)
        text = json.dumps(dataclasses.astuple(state)).ljust(_BYTES)
        os.pwrite(self._file.fileno(), text.encode(), 0)
        if self._shared:
            os.fsync(self._file.fileno())

    def _live(self) -> None:
        while not self._closed.wait(self._period):
            with contextlib.suppress(OSError):  # If the disk is full, the other ranks see no new state.
                self._write()
        with contextlib.suppress(OSError):
            self._file.close()
            os.unlink(self._path)
            os.rmdir(os.path.dirname(self._path))  # Succeeds for the last rank.


def read_state(model_dir: str, rank: int) -> RankState | None:
    """Returns the state of a rank; None if its host does not share the directory, or the rank has left."""
    try:
        with open(os.path.join(model_dir, DIRECTORY, str(rank))) as file:
            return RankState(*json.loads(file.read()))
    except (OSError, ValueError, TypeError):  # There is no file, or it is not written yet.
        return None


class RankStates:
    """Observes the states of all ranks while this rank waits for them.

    A rank lives while its file changes, no matter how long its work takes. Only this host's clock measures the times
    between changes, so clocks may differ.

    `own` is the calling rank, which is not called missing before its first step. A rank is lost after `lost_seconds`
    without a change of its file.
    """

    def __init__(self, model_dir: str, size: int, own: int, lost_seconds: float = LOST_SECONDS) -> None:
        self._model_dir, self._size, self._own, self._lost_seconds = model_dir, size, own, lost_seconds
        # By rank: (last `written`, time at which this host first saw it).
        self._seen: dict[int, tuple[float, float]] = {}

    def lost(self) -> str:
        """Returns a sentence that names the lost ranks; "" if there are none."""
        if all(silent < self._lost_seconds for _, silent in self._look()):
            return ""
        # This host may have been suspended itself, for example to move a virtual machine, so check again.
        time.sleep(_AGAIN_SECONDS)
        named = [
            f"rank {state.rank} on {state.host} has given no sign of life for {silent:.0f} s, in {state.phase} of step "
            f"{state.step}"
            for state, silent in self._look()
            if silent >= self._lost_seconds
        ]
        return f"{'; '.join(named)}: its process is stopped or dead, or its host hangs or is down" if named else ""

    def describe_missing(self) -> str:
        """Returns a sentence that names the ranks that a job waits for, and the phase and its start for each."""
        known = self._look()
        others = [each for each in known if each[0].rank != self._own or each[0].phase != "start"]
        found = missing(others)
        parts = [_describe(state, silent) for state, silent in found[:_NAMED]]
        if len(found) > _NAMED:
            parts.append(f"and {len(found) - _NAMED} more ranks")
        if known and not found:
            steps = ", ".join(f"rank {state.rank} in {state.phase} of step {state.step}" for state, _ in known[:_NAMED])
            parts.append(f"no rank is behind ({steps}): the exchange itself makes no progress")
        unknown = sorted(set(range(self._size)) - {state.rank for state, _ in known})
        if unknown:
            parts.append(
                f"nothing is known of rank {', '.join(map(str, unknown[:_NAMED]))}: it has left the training, or its "
                f"host does not see {self._model_dir}"
            )
        return "; ".join(parts)

    def _look(self) -> list[tuple[RankState, float]]:
        """Reads the files. Returns (state, seconds since this host saw it change) of each rank that has one."""
        now, found = time.monotonic(), []
        for rank in range(self._size):
            if (state := read_state(self._model_dir, rank)) is not None:
                written, since = self._seen.get(rank, (None, now))
                if written != state.written:
                    since = now
                self._seen[rank] = state.written, since
                found.append((state, now - since))
        return found


def missing(states: list[tuple[RankState, float]]) -> list[tuple[RankState, float]]:
    """Returns those (state, silent seconds) of the ranks that the others wait for; [] if all wait in the same step.

    These are the silent ranks, or else the working ranks with the lowest step, or else all ranks with the lowest step.
    """
    silent = [each for each in states if each[1] > _SILENT_SECONDS]
    if silent or not states:
        return silent
    last = min(state.step for state, _ in states)
    behind = [each for each in states if each[0].step == last]
    working = [each for each in behind if each[0].phase in _ALONE]
    return working or (behind if len(behind) < len(states) else [])


def _describe(state: RankState, silent: float) -> str:
    seconds = state.seconds + silent
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
    where = f"rank {state.rank} on {state.host} is missing: in {state.phase} of step {state.step} since {since}"
    text = f"{where}, for {seconds:.0f} s"
    if silent > _SILENT_SECONDS:
        text += f", without a sign of life for {silent:.0f} s: its process is stopped or dead, or its host hangs"
    return text
