"""Locks of files, which the kernel frees when the process that has the lock ends, even by a kill."""

import contextlib
import datetime
import errno
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import TextIO

from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_ENDING_SECONDS, _LOOK_SECONDS = 30.0, 0.1
# Errors of a file system that does not support locks, or that is mounted without them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def lock(path: str | os.PathLike[str]) -> TextIO:
    """Locks a file until the file is closed or this process ends, even by a kill. Creates the file if there is none.

    Returns the open file. The process that has the lock may remove the file; the next process then locks a new file.

    Caveat: other hosts see the lock only if the file system supports `flock` across hosts. NFS since Linux 2.6.12,
    CephFS and Lustre do, unless they are mounted with local locks.

    Raises:
      BlockingIOError: another process has the lock.
      OSError: the file cannot be created, or its file system does not support locks.
    """
    while True:
        file = open(path, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except OSError:
            file.close()
            raise
        file.close()


def _is_at(file: TextIO, path: str | os.PathLike[str]) -> bool:
    """Whether `path` still names the open file, which the process that had the lock may have removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


class FileLease:
    """A locked file that contains the process id and the host of the process that holds it, and the time of the lock.

    After a kill, the file remains, without a lock. If the file system does not support locks, the constructor logs a
    warning and locks nothing.

    Args:
      path: path of the file; its directory must exist.
      refusal: f(holder) -> the error message if another process has the lock; `holder` is a text such as
        `process 7 on host a since 2026-01-31 12:00:00`.

    Raises:
      UserError: another process has the lock, or the file cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], refusal: Callable[[str], str]) -> None:
        self._path, self._file = path, _locked(path, refusal)
        self._file.truncate(0)
        now = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
        self._file.write(f"{os.getpid()} on host {socket.gethostname()} since {now}\n")
        self._file.flush()

    def check(self) -> None:
        """Does nothing, because no other process can take the lock."""

    def close(self) -> None:
        """Removes the file and unlocks it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # Before the unlock: afterwards, the file may belong to another process.
        self._file.close()


def _locked(path: str | os.PathLike[str], refusal: Callable[[str], str]) -> TextIO:
    """Returns the locked file. If the holder was killed and is still releasing its memory, waits for its end."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            return lock(path)
        except BlockingIOError:
            holder = _written(path) or "of unknown number"
            if not _is_ending(holder) or time.monotonic() > deadline:
                raise UserError(refusal(f"process {holder}")) from None
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from error
            _log.warning("%s cannot be locked (%s): make sure that no other job uses its directory", path, error)
            return open(path, "a+")


def _written(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file; "" if the file was just removed."""
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        return file.read().strip()
    return ""


def _is_ending(holder: str) -> bool:
    """Whether the holder was killed on this host and is still releasing its memory, or has just ended."""
    pid, _, host = holder.partition(" on host ")
    if not pid.isdecimal() or host.partition(" since ")[0] != socket.gethostname():
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return not file.read() or _is_killed(pid)
    except OSError:
        return os.path.isdir("/proc/self")  # If there is a /proc, the process has ended.


def _is_killed(pid: str) -> bool:
    """Whether a process was sent SIGKILL and has not run since then."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return any(int(status.get(name, "0"), 16) >> (signal.SIGKILL - 1) & 1 for name in ("SigPnd", "ShdPnd"))
