"""Heartbeats: each rank of a job writes what it is doing, for the others to read while they wait for it."""

import contextlib
import dataclasses
import os
import socket
import struct
import threading
import time

DIRECTORY = ".ranks"
# int64 step, float64 start of the phase, 16 bytes phase | float64 last sign of life | 64 bytes host.
_STATE, _BEAT, _HOST = struct.Struct("<qd16s"), struct.Struct("<d"), struct.Struct("<64s")
_SIZE = _STATE.size + _BEAT.size + _HOST.size
_CLOSE_SECONDS = 5.0


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
    `period` seconds, together with the time: a stopped process gives no such sign of life. So a file system that hangs
    holds up that thread only. When a process is stopped or killed, the file is up to `period` seconds old.

    Args:
      model_dir: directory of the job.
      rank: rank of this process.
      clock: `Clock`, whose phases are written.
      shared: whether ranks on other hosts have to see the file: then it is written through to the file system's server.
      period: seconds between two writes.

    Raises:
      OSError: the file cannot be made.
    """

    def __init__(self, model_dir, rank, clock, shared=False, period=0.5):
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

    def close(self):
        """Removes the file: the rank has left the job in order."""
        self._clock.follow = None
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _say(self, phase, step):
        _STATE.pack_into(self._said, 0, step, time.time(), phase.encode())

    def _write(self):
        _BEAT.pack_into(self._said, _STATE.size, time.time())
        os.pwrite(self._file.fileno(), bytes(self._said), 0)
        if self._shared:
            os.fsync(self._file.fileno())

    def _live(self):
        while not self._closed.wait(self._period):
            with contextlib.suppress(OSError):  # If the disk is full, the other ranks see no sign of life.
                self._write()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._path))  # Succeeds for the last rank.


def read(model_dir, rank):
    """-> the `Beat` of a rank; None if it has none: its host does not share the directory, or the rank has left."""
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


def _text(padded):
    return padded.rstrip(b"\0").decode(errors="replace")
