"""The lease of a shard, which lets only the workers of one training write at a time."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import threading
import time
from typing import Any

from ctr_trainer.system.messages.errors import UserError

# Another training may take a lease after this number of seconds without a request from its holder: long enough for a
# machine that hangs for a while, short enough to wait for after a kill.
LEASE_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Lease:
    """The proof that the workers of one training send to a shard with each request; a client without it may only read.

    Attributes:
      token: a unique identifier of this lease.
      host, pid: the process that requested it.
      model_dir: the directory of the training.
      started: local time of the request, for example `2026-01-31 12:00:00`.
      job: a unique identifier of the training. Workers that `launch` restarts take the lease over at once, because
        `launch` has ended the previous workers. "" without `launch`.
    """

    token: str
    host: str
    pid: int
    model_dir: str
    started: str
    job: str = ""

    @staticmethod
    def new(model_dir: str | os.PathLike, job: str = "") -> Lease:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        return Lease(secrets.token_hex(16), socket.gethostname(), os.getpid(), str(model_dir), now, job)

    @staticmethod
    def parse(values: Any) -> Lease:
        """Returns the lease of a dict that `dataclasses.asdict` made; raises UserError if the dict is not a lease."""
        try:
            lease = Lease(**values)
        except TypeError:
            lease = None
        if lease is None or not (isinstance(lease.token, str) and lease.token):
            fields = ", ".join(field.name for field in dataclasses.fields(Lease))
            raise UserError(f"not a lease, which has {fields}: {values!r}")
        return lease

    def __str__(self) -> str:
        return f"the training of {self.model_dir} (process {self.pid} on {self.host}, started {self.started})"


class LeaseHeld(Exception):
    """Another training holds the lease.

    Attributes:
      holder: the holder's `Lease`, as text.
      heard: the time of the holder's last request by the shard's monotonic clock.
      left: seconds until another training may take the lease, if the holder sends no further request.
    """

    def __init__(self, holder: str, heard: float, left: float) -> None:
        super().__init__(holder)
        self.holder, self.heard, self.left = holder, heard, left


class LeaseBook:
    """The lease of a shard. This class is thread-safe.

    Each request of the holder renews the lease. A holder that was silent for too long keeps the lease if no other
    training has taken it.
    """

    def __init__(self, seconds: float = LEASE_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._heard = 0.0

    @property
    def holder(self) -> Lease | None:
        return self._lease

    def take(self, lease: Lease) -> bool:
        """Makes `lease` the lease of this shard, or renews it. Returns whether the lease is new to the shard.

        Raises LeaseHeld if another training holds the shard's lease.
        """
        with self._lock:
            now, before = time.monotonic(), self._lease
            is_new = before is None or before.token != lease.token
            is_succeeded = before is not None and lease.job != "" and before.job == lease.job
            if is_new and not is_succeeded and before is not None and now - self._heard < self._seconds:
                raise LeaseHeld(str(before), self._heard, self._heard + self._seconds - now)
            self._lease, self._heard = lease, now
            return is_new

    def renew(self, token: str | None, what: str) -> None:
        """Renews the lease for the holder; `what` is the operation, for the error message.

        Raises UserError if `token`, None for a client that only reads, is not the token of the lease.
        """
        with self._lock:
            if token is None or self._lease is None or token != self._lease.token:
                holder = f"{self._lease} holds it" if self._lease else "no training holds the lease now"
                raise UserError(
                    f"`{what}` refused: this client only reads, as it does not hold this service's lease; {holder}"
                )
            self._heard = time.monotonic()

    def release(self, token: str | None) -> None:
        with self._lock:
            if self._lease is not None and self._lease.token == token:
                self._lease = None
