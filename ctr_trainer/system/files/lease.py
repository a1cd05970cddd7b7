"""Leases: a file, or an object in a store, that one process holds until it closes the lease or ends.

A `FileLease` is a lock of the kernel, which frees it when the process ends. A `StoreLease` is an object that its owner
renews, because a store has no locks.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import pathlib
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

_log = logging.getLogger(__name__)
_ENDING_SECONDS, _LOOK_SECONDS = 30.0, 0.1
# Errors of a file system that does not support locks, or that is mounted without them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
LEASE_SECONDS = 30.0  # After this time without a renewal, the owner has lost the lease.
_SETTLE_SECONDS = 1.0
_RENEWALS = 4  # Number of renewals in LEASE_SECONDS.


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


def new_owner() -> dict[str, Any]:
    """Returns the JSON object that identifies this process as the owner of a lease that it renews."""
    return {
        "token": secrets.token_hex(8),
        "process": os.getpid(),
        "host": socket.gethostname(),
        "machine": hardware.machine_id("pid"),
        "since": f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}",
    }


def owner_name(owner: dict[str, Any] | None) -> str:
    """Returns the description of an owner for messages."""
    if not owner:
        return "another process"
    return f"process {owner.get('process')} on host {owner.get('host')} since {owner.get('since')}"


def has_ended(owner: dict[str, Any]) -> bool:
    """Whether an owner was a process of this machine that no longer exists; False if that is unknown."""
    machine = hardware.machine_id("pid")
    if not machine or owner.get("machine") != machine or not isinstance(owner.get("process"), int):
        return False
    return not pathlib.Path(f"/proc/{owner['process']}").exists()


class LeaseRenewal:
    """A thread that renews a lease until `close`.

    Args:
      seconds: time after which the lease ends without a renewal.
      renew: f() -> whether this process still has the lease. A UserError is logged, and `renew` is called again later.
      renewals: number of renewals in `seconds`.
    """

    def __init__(self, seconds: float, renew: Callable[[], bool], name: str, renewals: int = _RENEWALS) -> None:
        self._seconds, self._renew, self._ended = seconds, renew, threading.Event()
        self._period = seconds / renewals
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; waits at most `seconds` for a renewal that runs."""
        self._ended.set()
        self._thread.join(self._seconds)

    def _live(self) -> None:
        while not self._ended.wait(self._period):
            try:
                if not self._renew():
                    return
            except UserError as error:  # The next renewal may succeed in time.
                _log.warning("the lease was not renewed: %s", error)


class StoreLease:
    """A lease that is an object in a store, which a thread renews.

    The object names its owner's process, host and machine. Another process takes the lease immediately if the owner was
    a process of the same machine that has ended, otherwise after the object has not changed for 30 s. No process reads
    the clock of another host.

    Caveat: pyarrow cannot write an object only if it does not exist. If two processes request the lease within the same
    second, the last writer gets it, and the other process notices this after a second. A process that is stopped
    between its check and its write may write later, and takes the lease from its owner. The owner notices this at its
    next renewal, and `check` then raises.

    Args:
      seconds: time after which the lease ends without a renewal.

    Raises:
      BlockingIOError: another process has the lease; `strerror` describes this process.
      UserError: the store does not answer.
    """

    def __init__(self, path: Any, seconds: float = LEASE_SECONDS) -> None:
        self._path, self._seconds, self._owner = path, seconds, new_owner()
        self._count, self._lost_to = 0, ""
        self._wait_for_the_end_of(self._read())
        self._write()
        time.sleep(_SETTLE_SECONDS)
        self._refuse(self._read())
        self._renewal = LeaseRenewal(seconds, self._renew, "store lease")

    def check(self) -> None:
        """Raises UserError if another process has taken the lease."""
        if self._lost_to:
            raise UserError(
                f"{self._path}: {self._lost_to} has taken the lock, because this process did not renew it for "
                f"{self._seconds:g} s: it may no longer write there"
            )

    def close(self) -> None:
        """Releases the lease."""
        self._renewal.close()
        with contextlib.suppress(UserError):
            if self._is_own(self._read()):
                self._path.unlink(missing_ok=True)

    def _wait_for_the_end_of(self, found: dict[str, Any] | None) -> None:
        """Waits until a lease of another process is no longer renewed."""
        deadline, first = time.monotonic() + self._seconds, found
        if found and not has_ended(found):
            _log.info(
                "%s is the lock of %s: looking for %g s whether it lives", self._path, owner_name(found), self._seconds
            )
        while found and not has_ended(found) and time.monotonic() < deadline:
            time.sleep(min(1.0, self._seconds / _RENEWALS))
            found = self._read()
            if found and found != first:
                self._refuse(found)

    def _refuse(self, found: dict[str, Any] | None) -> None:
        if not self._is_own(found):
            raise BlockingIOError(errno.EWOULDBLOCK, owner_name(found))

    def _renew(self) -> bool:
        found = self._read()
        if not self._is_own(found):
            self._lost_to = owner_name(found)
            _log.error("%s: %s has taken the lock", self._path, self._lost_to)
            return False
        self._write()
        return True

    def _is_own(self, found: dict[str, Any] | None) -> bool:
        return found is not None and found["token"] == self._owner["token"]

    def _read(self) -> dict[str, Any] | None:
        """Returns the content of the object; None if there is no object."""
        if not self._path.is_file():
            return None
        try:
            return {"token": "", **json.loads(self._path.read_bytes())}
        except (UserError, ValueError):
            return {"token": ""}  # It was just removed, or is not a lease of this package.

    def _write(self) -> None:
        self._count += 1
        self._path.write_json({**self._owner, "renewed": self._count})


PathLease = FileLease | StoreLease  # A lease that only this process holds, until `close` or until the process ends.
