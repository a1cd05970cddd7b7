"""Locks of files, which the kernel frees when the process that has the lock ends, even by a kill."""

import contextlib
import errno
import fcntl
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from typing import TextIO

import psutil

from ctr_trainer.system.files.lease import InUse, Owner
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
# The longest waits for a process that was just killed, and for a killed process that is still releasing its memory.
_KILLED_SECONDS, _ENDING_SECONDS, _LOOK_SECONDS = 1.0, 30.0, 0.1
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
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:  # The process that had the lock has removed the file.
            pass
        except OSError:
            file.close()
            raise
        file.close()


class FileLease:
    """A locked file that names the process that holds it. After a kill, the file remains, without a lock.

    If the file system does not support locks, the constructor logs a warning and locks nothing.

    Args:
      path: path of the file; its directory must exist.
      refusal: f(holder) -> the error message if another process has the lock; `holder` is a text such as
        `process 7 on host a since 2026-01-31 12:00:00`.

    Raises:
      InUse: another process has the lock.
      UserError: the file cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], refusal: Callable[[str], str]) -> None:
        self._path, self._file = path, _locked(path, refusal)
        self._file.truncate(0)
        self._file.write(f"{Owner.new()}\n")
        self._file.flush()

    def check(self) -> None:
        """Does nothing, because no other process can take the lock."""

    def close(self) -> None:
        """Removes the file and unlocks it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # Before the unlock: afterwards, the file may belong to another process.
        self._file.close()


def _locked(path: str | os.PathLike[str], refusal: Callable[[str], str]) -> TextIO:
    """Returns the locked file. If the holder was just killed, or is still releasing its memory, waits for its end."""
    began = time.monotonic()
    while True:
        try:
            return lock(path)
        except BlockingIOError:
            with contextlib.suppress(FileNotFoundError), open(path) as file:
                holder = file.read().strip()
                seconds = _ENDING_SECONDS if _is_ending(holder) else _KILLED_SECONDS
                if time.monotonic() - began > seconds:
                    raise InUse(refusal(holder or "another process")) from None
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from error
            _log.warning("%s cannot be locked (%s): make sure that no other job uses its directory", path, error)
            return open(path, "a+")


def _is_ending(holder: str) -> bool:
    """Whether the holder is a process of this host that has ended, except that it is still releasing its memory."""
    found = re.match(r"process (\d+) on host (\S+) since", holder)
    if not found or found[2] != socket.gethostname():
        return False
    try:
        return not psutil.Process(int(found[1])).cmdline()
    except psutil.Error:
        return True
