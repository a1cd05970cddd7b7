"""A lock in a store, which has none of its own: an object that its owner renews."""

import contextlib
import datetime
import errno
import json
import logging
import os
import pathlib
import secrets
import socket
import threading
import time

from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
SECONDS = 30.0  # After so long without a renewal the owner has lost the lock.
_SETTLE_SECONDS = 1.0
_RENEWALS = 4  # In SECONDS.


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

    def __init__(self, path, seconds=SECONDS):
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
