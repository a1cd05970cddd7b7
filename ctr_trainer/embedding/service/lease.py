"""Who may write to a shard: the workers of one training at a time."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ctr_trainer.system.messages.errors import UserError

# Seconds of silence of its holder after which another training may take a lease: long enough for a machine that stands
# still for a while, short enough to wait for after a kill.
LEASE_SECONDS = 20.0


class Renewal:
    """Renews a lease from a thread, by `Shard.renew` of each shard, whatever the training does, until `close`."""

    def __init__(self, renewals: Sequence[Callable[[], None]]) -> None:
        self._renewals = renewals
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lease of the embedding service", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the renewals; returns once none runs."""
        self._end.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._end.wait(LEASE_SECONDS / 10):
            for renew in self._renewals:
                renew()


@dataclasses.dataclass(frozen=True)
class Lease:
    """The proof that the workers of one training show a shard with each request; a client without it may only read.

    Attributes:
      token: tells this lease from all others.
      host, pid: the process that asked for it.
      model_dir: the directory of the training.
      started: local time of the request, as `2026-01-31 12:00:00`.
      job: an identity that no other training has. Workers that `launch` restarts take the lease over at once, since
        `launch` has ended the earlier ones. "" without `launch`.
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
        """Returns the lease of a dict, as `dataclasses.asdict` makes it; raises UserError if it is none."""
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
      holder: its `Lease`, as text.
      heard: when it was heard of last, by the shard's clock; another number each time.
      left: seconds until another may take the lease, if nothing more is heard of it.
    """

    def __init__(self, holder: str, heard: float, left: float) -> None:
        super().__init__(holder)
        self.holder, self.heard, self.left = holder, heard, left


class LeaseBook:
    """The one lease of a shard; safe to use from several threads.

    Each request of its holder renews it. A holder that was silent for too long keeps the lease if no other training has
    taken it meanwhile.
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
        """Makes `lease` the lease of this shard, or renews it. Returns whether the shard had another lease before.

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
        """Notes that the holder lives; `what` is the operation, for the error.

        Raises UserError if `token`, None of a client that only reads, is not the token of the lease.
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
