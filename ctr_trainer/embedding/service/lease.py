"""The lease of a shard, which lets only the workers of one training write at a time."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import UserError

# Another training may take a lease after this number of seconds without a request from its holder: long enough for a
# machine that hangs for a while, short enough to wait for after a kill.
LEASE_SECONDS = 20.0


class ServicePlace:
    """The shards of a service as the place of a lease; `ServiceClient.release` returns it for all workers."""

    def __init__(self, shards: Sequence[Any]) -> None:
        self._shards = shards

    def take(self, owner: Owner, seconds: float) -> None:
        """Takes the lease of the first shard: if two trainings start concurrently, one of them gets all shards."""
        self._shards[0].hello()

    def renew(self, owner: Owner, seconds: float) -> Owner | None:
        for shard in self._shards:
            shard.renew()
        return None

    def give_back(self, owner: Owner) -> None:
        """Does nothing."""


class LeaseHeld(Exception):
    """Training `holder` holds the lease: `heard` from at this monotonic time, it loses the lease in `left` s."""

    def __init__(self, holder: str, heard: float, left: float) -> None:
        super().__init__(holder)
        self.holder, self.heard, self.left = holder, heard, left


class LeaseBook:
    """The lease of a shard. Requests of the holder renew it; a silent holder keeps it until another takes it."""

    def __init__(self, seconds: float = LEASE_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._owner: Owner | None = None
        self._heard = 0.0

    @property
    def holder(self) -> Owner | None:
        return self._owner

    def take(self, owner: Owner) -> bool:
        """Gives the lease to `owner`, or renews it. Returns whether it is new to the shard.

        Raises LeaseHeld if another training holds it.
        """
        with self._lock:
            now, before = time.monotonic(), self._owner
            is_new = before is None or before.token != owner.token
            is_succeeded = before is not None and owner.job != "" and before.job == owner.job
            if is_new and not is_succeeded and before is not None and now - self._heard < self._seconds:
                raise LeaseHeld(str(before), self._heard, self._heard + self._seconds - now)
            self._owner, self._heard = owner, now
            return is_new

    def renew(self, token: str | None, what: str) -> None:
        """Renews the lease for the holder of `token`; refuses the operation `what` of any other client."""
        with self._lock:
            if token is None or self._owner is None or token != self._owner.token:
                holder = f"{self._owner} holds it" if self._owner else "no training holds the lease now"
                raise UserError(
                    f"`{what}` refused: this client only reads, as it does not hold this service's lease; {holder}"
                )
            self._heard = time.monotonic()

    def release(self, token: str | None) -> None:
        with self._lock:
            if self._owner is not None and self._owner.token == token:
                self._owner = None
