"""Heartbeats of the ranks, which show what each rank is doing, and which ranks are missing or lost."""

import contextlib
import dataclasses
import os
import socket
import struct
import threading
import time

from ctr_trainer.ranks.notices import ATTEMPT
from ctr_trainer.system.measuring.clock import PHASES, Clock

DIRECTORY = ".ranks"
# int64 step, float64 start of the phase, 16 bytes phase | float64 time of the heartbeat | 64 bytes host, 48 start.
_STATE, _BEAT, _ALL = struct.Struct("<qd16s"), struct.Struct("<d"), struct.Struct("<qd16sd64s48s")
_CLOSE_SECONDS = 5.0
_ALONE = {name for name, phase in PHASES.items() if "ranks" not in phase.waits_for}
_SILENT_SECONDS = 5.0
_NAMED = 8
LOST_SECONDS = 60.0
_AGAIN_SECONDS = 1.5


@dataclasses.dataclass(frozen=True)
class Beat:
    """The last heartbeat of a rank.

    Attributes:
      step: the current global step.
      phase: the current phase, one of `clock.PHASES`.
      since, alive: start of the phase and time of the heartbeat, in seconds since 1970 by the clock of the rank's host.
      attempt: the launcher's name for this start of the workers; "" without a launcher.
    """

    rank: int
    step: int
    phase: str
    since: float
    alive: float
    host: str
    attempt: str = ""


class Heartbeat:
    """Writes the state of this rank to `MODEL_DIR/.ranks/RANK`, which the other ranks read while they wait.

    A change of phase copies 32 bytes within the process. A thread writes these bytes and the time to the file every
    `period` seconds, unless the process is stopped. A file system that hangs blocks only this thread. When a process is
    stopped or killed, the file is up to `period` seconds old.

    Args:
      shared: whether ranks on other hosts must see the file; if so, each write is flushed to the file server.
      period: seconds between two writes.

    Raises:
      OSError: the file cannot be created.
    """

    def __init__(self, model_dir: str, rank: int, clock: Clock, shared: bool = False, period: float = 0.5) -> None:
        os.makedirs(os.path.join(model_dir, DIRECTORY), exist_ok=True)
        self._path = os.path.join(model_dir, DIRECTORY, str(rank))
        # Create a new file, so that no rank reads the file of an earlier run.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115, it stays open until `close`
        host, attempt = socket.gethostname().encode(), os.environ.get(ATTEMPT, "").encode()
        self._said = bytearray(_ALL.pack(0, 0.0, b"", 0.0, host, attempt))
        self._clock, self._shared, self._period = clock, shared, period
        self._say(clock.phase, clock.step)
        self._write()
        clock.follow = self._say
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Removes the file, which shows that the rank has left the job in order."""
        self._clock.follow = None
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _say(self, phase: str, step: int) -> None:
        _STATE.pack_into(self._said, 0, step, time.time(), phase.encode())

    def _write(self) -> None:
        _BEAT.pack_into(self._said, _STATE.size, time.time())
        os.pwrite(self._file.fileno(), bytes(self._said), 0)
        if self._shared:
            os.fsync(self._file.fileno())

    def _live(self) -> None:
        while not self._closed.wait(self._period):
            with contextlib.suppress(OSError):  # If the disk is full, the other ranks see no heartbeat.
                self._write()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._path))  # Succeeds for the last rank.


def read_beat(model_dir: str, rank: int) -> Beat | None:
    """Returns the `Beat` of a rank; None if its host does not share the directory, or the rank has left."""
    try:
        with open(os.path.join(model_dir, DIRECTORY, str(rank)), "rb") as file:
            step, since, phase, alive, host, attempt = _ALL.unpack(file.read(_ALL.size))
    except (OSError, struct.error):  # There is no file, or it is not written yet.
        return None
    return Beat(rank, step, _text(phase), since, alive, _text(host), _text(attempt))


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def missing(beats: list[Beat], now: float) -> list[Beat]:
    """Returns the heartbeats of the ranks that the others wait for.

    These are the ranks without a recent heartbeat. If there are none, they are the ranks with the lowest step, only the
    working ranks if some of them are working; [] if all ranks wait in the same step.
    """
    silent = [beat for beat in beats if now - beat.alive > _SILENT_SECONDS]
    if silent or not beats:
        return silent
    last = min(beat.step for beat in beats)
    behind = [beat for beat in beats if beat.step == last]
    working = [beat for beat in behind if beat.phase in _ALONE]
    return working or (behind if len(behind) < len(beats) else [])


def describe_missing(model_dir: str, size: int, own: int | None = None, now: float | None = None) -> str:
    """Returns a sentence that names the ranks that a job waits for, and the phase and its start for each.

    Args:
      own: the calling rank, which is not named before its first step; None if the caller is not a rank.
    """
    now = time.time() if now is None else now
    beats = [beat for beat in (read_beat(model_dir, rank) for rank in range(size)) if beat is not None]
    found = missing([beat for beat in beats if beat.rank != own or beat.phase != "start"], now)
    parts = [_describe(beat, now) for beat in found[:_NAMED]]
    if len(found) > _NAMED:
        parts.append(f"and {len(found) - _NAMED} more ranks")
    if beats and not found:
        steps = ", ".join(f"rank {beat.rank} in {beat.phase} of step {beat.step}" for beat in beats[:_NAMED])
        parts.append(f"no rank is behind ({steps}): the exchange itself makes no progress")
    unknown = sorted(set(range(size)) - {beat.rank for beat in beats})
    if unknown:
        parts.append(
            f"nothing is known of rank {', '.join(map(str, unknown[:_NAMED]))}: it has left the training, or its host "
            f"does not see {model_dir}"
        )
    return "; ".join(parts)


def _describe(beat: Beat, now: float) -> str:
    seconds, clock = now - beat.since, time.strftime("%H:%M:%S", time.localtime(beat.since))
    where = f"rank {beat.rank} on {beat.host} is missing: in {beat.phase} of step {beat.step} since {clock}"
    text = f"{where}, for {seconds:.0f} s"
    silent = now - beat.alive
    if silent > _SILENT_SECONDS:
        text += f", without a sign of life for {silent:.0f} s: its process is stopped or dead, or its host hangs"
    return text


class SignsOfLife:
    """Monitors the heartbeats of the ranks while this rank waits for them.

    Times between changes are measured by the clock of this host only, so that clocks may differ and the file system may
    be slow. A working rank has heartbeats no matter how long its work takes.

    Args:
      seconds: time without a new heartbeat after which a rank is lost.
    """

    def __init__(self, model_dir: str, size: int, seconds: float) -> None:
        self._model_dir, self._size, self._seconds = model_dir, size, seconds
        # By rank: (time of its last heartbeat by its host's clock, time at which this host first saw this heartbeat).
        self._seen: dict[int, tuple[float | None, float]] = {}

    def problem(self) -> str:
        """Returns a sentence that names the lost ranks; "" if there are none."""
        if not self._silent():
            return ""
        # This host may have been suspended itself, for example to move a virtual machine, so check again.
        time.sleep(_AGAIN_SECONDS)
        named = [
            f"rank {beat.rank} on {beat.host} has given no sign of life for {seconds:.0f} s, in {beat.phase} of step "
            f"{beat.step}"
            for beat, seconds in self._silent()
        ]
        return f"{'; '.join(named)}: its process is stopped or dead, or its host hangs or is down" if named else ""

    def _silent(self) -> list[tuple[Beat, float]]:
        """Returns (heartbeat, seconds since its last change) for heartbeats that have not changed for too long."""
        now = time.monotonic()
        found: list[tuple[Beat, float]] = []
        for beat in (read_beat(self._model_dir, rank) for rank in range(self._size)):
            if beat is None:
                continue
            alive, since = self._seen.get(beat.rank, (None, now))
            if alive != beat.alive:
                self._seen[beat.rank] = beat.alive, now
            elif now - since >= self._seconds:
                found.append((beat, now - since))
        return found
