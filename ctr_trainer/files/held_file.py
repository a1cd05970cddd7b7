"""A lock of a file that names its process, for as long as the process lives."""

import contextlib
import datetime
import errno
import logging
import os
import signal
import socket
import time

from ctr_trainer.files.file_lock import lock
from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
_ENDING_SECONDS, _LOOK_SECONDS = 30.0, 0.1
# A file system that knows no locks, or is mounted without them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def hold(path, refusal):
    """Locks a file for this process, by `file_lock.lock`.

    The file names the process that has the lock, its host, and since when. After a kill the file stays, without a lock.
    If the file system has no locks, this logs a warning and locks nothing.

    Args:
      path: path of the file; its directory exists.
      refusal: f(holder) -> the error message if another process has the lock; `holder` is a text such as
        `7 on host a since 2026-01-31 12:00:00`.

    Returns:
      the `HeldFile`.

    Raises:
      UserError: another process has the lock, or the file cannot be made.
    """
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            file = lock(path)
            break
        except BlockingIOError:
            holder = _written(path) or "of unknown number"
            if not _is_ending(holder) or time.monotonic() > deadline:
                raise UserError(refusal(f"process {holder}")) from None
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from error
            _log.warning("%s cannot be locked (%s): make sure that no other job uses its directory", path, error)
            file = open(path, "a+")
            break
    file.truncate(0)
    file.write(f"{os.getpid()} on host {socket.gethostname()} since {datetime.datetime.now():%Y-%m-%d %H:%M:%S}\n")
    file.flush()
    return HeldFile(path, file)


class HeldFile:
    """A file that this process has locked.

    Args:
      path: path of the file.
      file: the open file.
    """

    def __init__(self, path, file):
        self._path, self._file = path, file

    def check(self):
        """Does nothing: no other process can take the lock."""

    def close(self):
        """Removes the file and gives the lock back."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # While the lock is held: later the file may be another process's.
        self._file.close()


def _written(path):
    """-> the text of a file; "" if the file has just been removed."""
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        return file.read().strip()
    return ""


def _is_ending(holder):
    """-> whether the process that has the lock was killed on this host and is still giving its memory back."""
    pid, _, host = holder.partition(" on host ")
    if not pid.isdecimal() or host.partition(" since ")[0] != socket.gethostname():
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return not file.read() or _is_killed(pid)
    except OSError:
        return os.path.isdir("/proc/self")  # If there is a /proc, the process is gone.


def _is_killed(pid):
    """-> whether a process was sent SIGKILL and has not run since."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return any(int(status.get(name, "0"), 16) >> (signal.SIGKILL - 1) & 1 for name in ("SigPnd", "ShdPnd"))
