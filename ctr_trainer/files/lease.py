"""A lock on a file or an object of a store, which one process holds until it closes it or ends."""

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

from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
_ENDING_SECONDS, _LOOK_SECONDS = 30.0, 0.1
# A file system that knows no locks, or is mounted without them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
LEASE_SECONDS = 30.0  # After so long without a renewal the owner has lost the lock.
_SETTLE_SECONDS = 1.0
_RENEWALS = 4  # In LEASE_SECONDS.


def lock(path):
    """Locks a file until the file is closed or this process ends, even by a kill. Makes the file if there is none.

    The process that has the lock may remove the file. The next process then locks a new file.

    Caveat: other hosts see the lock if the file system passes `flock` on: NFS since Linux 2.6.12, CephFS and Lustre do,
    unless they are mounted with local locks.

    Args:
      path: path of the file; its directory exists.

    Returns:
      the open file.

    Raises:
      BlockingIOError: another process has the lock.
      OSError: the file cannot be made, or its file system has no locks.
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


def _is_at(file, path):
    """-> whether `path` still names the open file: the process that had the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def hold(path, refusal):
    """Locks a file for this process, by `lock`.

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


class StoreLock:
    """Holds a lock until `close`, or until this process ends; a thread renews it.

    The object names its owner's process, host and machine. Another process takes the lock at once if it sees that the
    owner's process has ended on this machine, and else after 30 s in which the object has not changed. No clock of
    another host is read.

    Caveat: pyarrow cannot write an object on the condition that there is none. If two processes ask for the lock within
    the same second, the one that wrote last has it, and the other one sees that after a second. A process that writes
    later than that, because it was stopped between its look and its write, takes the lock from its owner, who finds out
    at its next renewal: then `check` raises.

    Args:
      path: `StorePath` of the object.
      seconds: how long a lock lives without a renewal.

    Raises:
      BlockingIOError: another process has the lock; `strerror` says which.
      UserError: the store does not answer.
    """

    def __init__(self, path, seconds=LEASE_SECONDS):
        self._path, self._seconds, self._token = path, seconds, secrets.token_hex(8)
        self._count, self._lost_to, self._ended = 0, None, threading.Event()
        self._since = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
        self._wait_for_the_end_of(self._read())
        self._write()
        time.sleep(_SETTLE_SECONDS)
        self._refuse(self._read())
        self._thread = threading.Thread(target=self._live, name="store lock", daemon=True)
        self._thread.start()

    def check(self):
        """Raises UserError if another process has taken the lock since."""
        if self._lost_to:
            raise UserError(
                f"{self._path}: {self._lost_to} has taken the lock, because this process did not renew it for "
                f"{self._seconds:g} s: it may no longer write there"
            )

    def close(self):
        """Gives the lock back."""
        self._ended.set()
        self._thread.join(self._seconds)
        with contextlib.suppress(UserError):
            if self._is_own(self._read()):
                self._path.unlink(missing_ok=True)

    def _wait_for_the_end_of(self, found):
        """Waits until the lock that was found is no longer renewed."""
        deadline, first = time.monotonic() + self._seconds, found
        if found and not has_ended(found):
            _log.info(
                "%s is the lock of %s: looking for %g s whether it lives", self._path, _name(found), self._seconds
            )
        while found and not has_ended(found) and time.monotonic() < deadline:
            time.sleep(min(1.0, self._seconds / _RENEWALS))
            found = self._read()
            if found and found != first:
                self._refuse(found)

    def _refuse(self, found):
        if not self._is_own(found):
            raise BlockingIOError(errno.EWOULDBLOCK, _name(found) if found else "another process")

    def _live(self):
        while not self._ended.wait(self._seconds / _RENEWALS):
            try:
                found = self._read()
                if not self._is_own(found):
                    self._lost_to = _name(found) if found else "another process"
                    _log.error("%s: %s has taken the lock", self._path, self._lost_to)
                    return
                self._write()
            except UserError as error:  # The next renewal may succeed in time.
                _log.warning("the lock was not renewed: %s", error)

    def _is_own(self, found):
        return found is not None and found["token"] == self._token

    def _read(self):
        """-> dict of what the object says; None if there is none."""
        if not self._path.is_file():
            return None
        try:
            return {"token": "", **json.loads(self._path.read_bytes())}
        except (UserError, ValueError):
            return {"token": ""}  # Removed a moment ago, or no lock of this package.

    def _write(self):
        self._count += 1
        holder = {"token": self._token, "process": os.getpid(), "host": socket.gethostname(), "machine": machine()}
        self._path.write_json({**holder, "since": self._since, "renewed": self._count})


def _name(found):
    return f"process {found.get('process')} on host {found.get('host')} since {found.get('since')}"


def has_ended(found):
    """-> whether an owner, of `process` and `machine`, was a process of this machine that is no more."""
    if found.get("machine") != machine() or not isinstance(found.get("process"), int):
        return False
    return not pathlib.Path(f"/proc/{found['process']}").exists()


def machine():
    """-> what names this boot of this machine, and which of its containers' process numbers this process sees."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}" if boot.exists() else None
