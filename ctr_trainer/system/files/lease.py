"""Leases: of a locked file, which the kernel frees, and of places where their owners renew them."""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import logging
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

_log = logging.getLogger(__name__)
LEASE_SECONDS = 30.0  # After this time without a renewal, the owner has lost the lease.
_SETTLE_SECONDS = 1.0
# The longest waits for a file of a living process, which may have just been killed, and of one that has ended.
_KILLED_SECONDS, _ENDING_SECONDS, _LOOK_SECONDS = 1.0, 30.0, 0.1
# Errors of a file system that does not support locks, or that is mounted without them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclasses.dataclass(frozen=True)
class Owner:
    """The process that holds a lease.

    Attributes:
      token: a unique identifier of this lease.
      machine: identifies the machine; "" if unknown.
      since: local time of the request, for example `2026-01-31 12:00:00`.
      model_dir: the directory of the training; "" if the process is no training.
      job: a unique identifier of the job. Workers that `launch` restarts take the lease of their job over at once,
        because `launch` has ended the previous workers. "" without `launch`.
    """

    token: str
    process: int
    host: str
    machine: str
    since: str
    model_dir: str = ""
    job: str = ""

    @classmethod
    def new(cls, model_dir: str | os.PathLike[str] = "", job: str = "") -> "Owner":
        """Returns the owner of a new lease of this process."""
        now, machine = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}", hardware.machine_id("pid")
        return cls(secrets.token_hex(16), os.getpid(), socket.gethostname(), machine, now, str(model_dir), job)

    @classmethod
    def parse(cls, values: Any) -> "Owner | None":
        """Returns the owner of a dict that `dataclasses.asdict` made, or None. Other values of the dict are ignored."""
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            owner = cls(**{name: values[name] for name in names if name in values})
        except TypeError:
            return None
        return owner if isinstance(owner.token, str) and owner.token and isinstance(owner.process, int) else None

    @classmethod
    def of_json(cls, text: str | bytes) -> "Owner":
        """Returns the owner in a text of `to_json`, or UNKNOWN if this package did not write the text."""
        try:
            return cls.parse(json.loads(text)) or UNKNOWN
        except ValueError:
            return UNKNOWN

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        process = f"process {self.process} on host {self.host} since {self.since}"
        return f"the training of {self.model_dir} ({process})" if self.model_dir else process

    def has_ended(self) -> bool:
        """Whether this is a process of this machine that has ended; False if that is unknown."""
        if not self.machine or self.machine != hardware.machine_id("pid"):
            return False
        try:
            return not pathlib.Path(f"/proc/{self.process}/cmdline").read_bytes()  # It may still release its memory.
        except OSError as error:
            return isinstance(error, FileNotFoundError | ProcessLookupError)


UNKNOWN = Owner("", 0, "unknown", "", "an unknown time")  # Of a lease that this package did not write.


class InUse(UserError):
    """Another process has the lease."""


class FileLease:
    """A locked file that names the process that holds it. After a kill, the file remains, without a lock.

    If the file system does not support locks, the constructor logs a warning and locks nothing.

    Caveat: other hosts see the lock only if the file system supports `flock` across hosts. NFS since Linux 2.6.12,
    CephFS and Lustre do, unless they are mounted with local locks.

    Args:
      path: path of the file; its directory must exist.
      refusal: f(holder) -> the error message if another process has the lock; `holder` is a text such as
        `process 7 on host a since 2026-01-31 12:00:00`.

    Raises InUse if another process has the lock, and UserError if the file cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], refusal: Callable[[str], str]) -> None:
        self._path, self._refusal = path, refusal
        try:
            self._file = self._lock()
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from error
            _log.warning("%s cannot be locked (%s): make sure that no other job uses its directory", path, error)
            self._file = open(path, "a+")  # noqa: SIM115, it stays open until `close`
        self._file.truncate(0)
        self._file.write(f"{Owner.new().to_json()}\n")
        self._file.flush()

    def check(self) -> None:
        """Does nothing, because no other process can take the lock."""

    def close(self) -> None:
        """Removes the file and unlocks it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # Before the unlock: afterwards, the file may belong to another process.
        self._file.close()

    def _lock(self) -> TextIO:
        """Returns the locked file. If its holder was just killed, or still releases its memory, waits for its end."""
        began = time.monotonic()
        while True:
            file = open(self._path, "a+")  # noqa: SIM115, it stays open until `close`
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                    return file
            except FileNotFoundError:  # The process that had the lock has removed the file.
                pass
            except BlockingIOError:
                file.seek(0)
                holder = Owner.of_json(file.read())
                if time.monotonic() - began > (_ENDING_SECONDS if holder.has_ended() else _KILLED_SECONDS):
                    raise InUse(self._refusal(str(holder))) from None
                time.sleep(_LOOK_SECONDS)
            except OSError:
                file.close()
                raise
            file.close()


class LeasePlace(Protocol):
    """Where a lease is kept: an object in a store, the shards of a service, a name in a cluster."""

    def take(self, owner: Owner, seconds: float) -> None:
        """Waits for the end of a lease that is no longer renewed, and takes it. Raises if another process has it."""

    def renew(self, owner: Owner, seconds: float) -> Owner | None:
        """Renews the lease for `seconds`; returns the process that has taken it meanwhile, or None."""

    def give_back(self, owner: Owner) -> None:
        """Frees the lease if this owner still has it."""


class Lease:
    """A lease that a thread renews until `close`. If the process is killed, the lease ends by itself.

    Args:
      owner: this process, or the process that holds the lease for several.
      seconds: time after which the lease ends without a renewal.
      renewals: number of renewals in `seconds`.
    """

    def __init__(
        self, place: LeasePlace, owner: Owner | None = None, seconds: float = LEASE_SECONDS, renewals: int = 4
    ) -> None:
        self.owner = owner or Owner.new()
        self._place, self._seconds, self._period = place, seconds, seconds / renewals
        self._lost_to: Owner | None = None
        self._ended = threading.Event()
        place.take(self.owner, seconds)
        self._thread = threading.Thread(target=self._live, name=f"lease of {type(place).__name__}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises UserError if another process has taken the lease."""
        if self._lost_to is not None:
            raise UserError(
                f"{self._place}: {self._lost_to} has taken the lock, because this process did not renew it for "
                f"{self._seconds:g} s: it may no longer write there"
            )

    def close(self) -> None:
        """Ends the renewals, waits at most `seconds` for one that runs, and frees the lease."""
        self._ended.set()
        self._thread.join(self._seconds)
        with contextlib.suppress(UserError):
            self._place.give_back(self.owner)

    def _live(self) -> None:
        while not self._ended.wait(self._period):
            try:
                self._lost_to = self._place.renew(self.owner, self._seconds)
            except UserError as error:  # The next renewal may succeed in time.
                _log.warning("the lease was not renewed: %s", error)
            if self._lost_to is not None:
                _log.error("%s: %s has taken the lock", self._place, self._lost_to)
                return


class StorePlace:
    """An object in a store, which names the owner of a lease.

    Another process takes the lease immediately if the owner was a process of the same machine that has ended, otherwise
    after the object has not changed for the lease's seconds. No process reads the clock of another host.

    Caveat: pyarrow cannot write an object only if it does not exist. If two processes request the lease within the same
    second, the last writer gets it, and the other process notices this after a second. A process that is stopped
    between its check and its write may write later, and takes the lease from its owner. The owner notices this at its
    next renewal, and `Lease.check` then raises.

    `refusal`: see `FileLease`.
    """

    def __init__(self, path: Any, refusal: Callable[[str], str]) -> None:
        self._path, self._refusal, self._count = path, refusal, 0

    def __str__(self) -> str:
        return str(self._path)

    def take(self, owner: Owner, seconds: float) -> None:
        """Takes the lease. Raises InUse if another process has it."""
        deadline = time.monotonic() + seconds
        first = text = self._read()
        holder = Owner.of_json(first)
        if first and not holder.has_ended():
            _log.info("%s is the lock of %s: looking for %g s whether it lives", self._path, holder, seconds)
        while text and not holder.has_ended() and time.monotonic() < deadline:
            time.sleep(min(1.0, seconds / 4))
            text = self._read()
            if text and text != first:
                raise InUse(self._refusal(str(Owner.of_json(text))))
        self._write(owner)
        time.sleep(_SETTLE_SECONDS)
        if other := self._taken_by(owner):
            raise InUse(self._refusal(str(other)))

    def renew(self, owner: Owner, seconds: float) -> Owner | None:
        other = self._taken_by(owner)
        if other is None:
            self._write(owner)
        return other

    def give_back(self, owner: Owner) -> None:
        if self._taken_by(owner) is None:
            self._path.unlink(missing_ok=True)

    def _taken_by(self, owner: Owner) -> Owner | None:
        found = Owner.of_json(self._path.read_bytes() if self._path.is_file() else b"")
        return None if found.token == owner.token else found

    def _read(self) -> bytes:
        """Returns the content of the object, which each renewal changes; empty if there is no object."""
        if not self._path.is_file():
            return b""
        try:
            return self._path.read_bytes()
        except UserError:
            return b"-"  # It was just removed, or the store does not answer.

    def _write(self, owner: Owner) -> None:
        self._count += 1
        self._path.write_json({**dataclasses.asdict(owner), "renewed": self._count})
