"""Which ranks are alive, by their heartbeats: what each is doing, who is missing, who is lost."""

import contextlib
import dataclasses
import os
import socket
import struct
import threading
import time

from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.phases import PHASES

DIRECTORY = ".ranks"
# int64 step, float64 start of the phase, 16 bytes phase | float64 last sign of life | 64 bytes host.
_STATE, _BEAT, _HOST = struct.Struct("<qd16s"), struct.Struct("<d"), struct.Struct("<64s")
_SIZE = _STATE.size + _BEAT.size + _HOST.size
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
      rank: the rank.
      step: the global step that the rank is in.
      phase: the phase that it is in, one of `phases.PHASES`.
      since: when it entered the phase, in seconds since 1970, by its host's clock.
      alive: when its process ran last, in seconds since 1970, by its host's clock.
      host: name of its host.
    """

    rank: int
    step: int
    phase: str
    since: float
    alive: float
    host: str


class Heartbeat:
    """Writes what this rank does to `MODEL_DIR/.ranks/RANK`, which the other ranks read while they wait.

    A change of phase costs a copy of 32 bytes within the process. A thread writes these bytes to the file every
    `period` seconds, together with the time, which a stopped process does not do. A file system that hangs holds up
    only that thread. When a process is stopped or killed, the file is up to `period` seconds old.

    Args:
      model_dir: directory of the job.
      rank: rank of this process.
      clock: the clock whose phases are written.
      shared: whether ranks on other hosts must see the file: then it is flushed to the server of the file system.
      period: seconds between two writes.

    Raises:
      OSError: the file cannot be created.
    """

    def __init__(self, model_dir: str, rank: int, clock: Clock, shared: bool = False, period: float = 0.5) -> None:
        os.makedirs(os.path.join(model_dir, DIRECTORY), exist_ok=True)
        self._path = os.path.join(model_dir, DIRECTORY, str(rank))
        # A new file, so that no rank reads what an earlier run has left.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115, it is written to until `close`
        self._said = bytearray(_SIZE)
        _HOST.pack_into(self._said, _STATE.size + _BEAT.size, socket.gethostname().encode()[:64])
        self._clock, self._shared, self._period = clock, shared, period
        self._say(clock.phase, clock.step)
        self._write()
        clock.follow = self._say
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Removes the file: the rank has left the job in order."""
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
            with contextlib.suppress(OSError):  # If the disk is full, the other ranks see no sign of life.
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
            data = file.read(_SIZE)
    except OSError:
        return None
    if len(data) < _SIZE:
        return None
    step, since, phase = _STATE.unpack_from(data)
    (alive,) = _BEAT.unpack_from(data, _STATE.size)
    (host,) = _HOST.unpack_from(data, _STATE.size + _BEAT.size)
    return Beat(rank, step, _text(phase), since, alive, _text(host))


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def missing(beats: list[Beat], now: float) -> list[Beat]:
    """Finds the ranks that the others wait for: ranks whose process stands still, or else ranks with the lowest step.

    Args:
      beats: the heartbeats.
      now: seconds since 1970.

    Returns:
      their heartbeats; [] if all ranks wait in one step.
    """
    silent = [beat for beat in beats if now - beat.alive > _SILENT_SECONDS]
    if silent or not beats:
        return silent
    last = min(beat.step for beat in beats)
    behind = [beat for beat in beats if beat.step == last]
    working = [beat for beat in behind if beat.phase in _ALONE]
    return working or (behind if len(behind) < len(beats) else [])


def describe_missing(model_dir: str, size: int, own: int | None = None, now: float | None = None) -> str:
    """Returns a sentence that names the ranks that a job waits for, the phase of each, and since when it lasts.

    Args:
      model_dir: directory of the ranks' heartbeats.
      size: number of ranks.
      own: the rank that asks; it is not named if it is before its first step. None if no rank asks.
      now: seconds since 1970; None for this moment.
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
    """Watches the heartbeats of the ranks, while this one waits for them.

    It uses the clock of this host only and looks for changes, so the clocks of other hosts need not agree with it, and
    a file system that shows changes late does no harm. A rank that works has a heartbeat, however long its work takes.

    Args:
      model_dir: directory of the heartbeats.
      size: number of ranks.
      seconds: time after which a rank without a new heartbeat is lost.
    """

    def __init__(self, model_dir: str, size: int, seconds: float) -> None:
        self._model_dir, self._size, self._seconds = model_dir, size, seconds
        # By rank: when its process ran last, by the clock of its host; and since when that is known here.
        self._seen: dict[int, tuple[float | None, float]] = {}

    def problem(self) -> str:
        """Returns a sentence that says which rank is lost; "" if no rank is known to be lost."""
        if not self._silent():
            return ""
        # If this host was stopped too, for example because a virtual machine was moved, the others were as well.
        time.sleep(_AGAIN_SECONDS)
        named = [
            f"rank {beat.rank} on {beat.host} has given no sign of life for {seconds:.0f} s, in {beat.phase} of step "
            f"{beat.step}"
            for beat, seconds in self._silent()
        ]
        return f"{'; '.join(named)}: its process is stopped or dead, or its host hangs or is down" if named else ""

    def _silent(self) -> list[tuple[Beat, float]]:
        """Returns the heartbeats that have not changed for too long, and for how many seconds."""
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
