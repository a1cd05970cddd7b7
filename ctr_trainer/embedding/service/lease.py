"""Who may use the rows of a shard: one training writes at a time, and each request is for the rows that it knows."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import Lost, UserError

# Another training may take a lease after this number of seconds without a request from its holder: long enough for a
# machine that hangs for a while, short enough to wait for after a kill.
LEASE_SECONDS = 20.0
# The store works on a request for milliseconds.
_WAIT_SECONDS = 600


class ServicePlace:
    """The shards of a service as the place of a lease; `ServiceClient.release` returns it for all workers."""

    def __init__(self, shards: Sequence[Any]) -> None:
        self._shards = shards

    def take(self, owner: Owner, seconds: float) -> None:
        """Takes the lease of the first shard: if two trainings start concurrently, one of them gets all shards."""
        self._shards[0].hello()

    def renew(self, owner: Owner, seconds: float) -> Owner | None:
        for shard in self._shards:
            shard.at_once("renew")
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
        self._only_job: str | None = None  # The job of all owners so far; "" if there is no such job.

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
            self._only_job = owner.job if self._only_job in (None, owner.job) else ""
            return is_new

    def is_only_job(self, owner: Owner | None) -> bool:
        """Whether no other job than the owner's has ever had the lease, so that all rows are of that job."""
        return owner is not None and owner.job != "" and owner.job == self._only_job

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


class Replaced(Exception):
    """A request was made for rows that have been replaced; the message gives the reason."""


class Restarted(Exception):
    """A request was made for the rows of a process that has ended."""


class Incarnation:
    """The name of a service's rows, which changes when the rows are replaced or another training takes the lease.

    This class is thread-safe.
    """

    def __init__(self) -> None:
        self._process = uuid.uuid4().hex
        self._number, self._why, self._under_way = 0, "", 0
        self._replacing = 0  # The number of blocks of `replaced` that wait or run.
        self._changed = threading.Condition()

    def __str__(self) -> str:
        return f"{self._process}.{self._number}"

    def check_process(self, expected: str | None) -> None:
        """Raises Restarted unless `expected`, an incarnation or None, is one of this process."""
        if expected is not None and str(expected).partition(".")[0] != self._process:
            raise Restarted()

    def check(self, expected: str | None) -> None:
        """Raises Restarted or Replaced unless `expected` is this incarnation, or None."""
        self.check_process(expected)
        if expected is not None and (expected != str(self) or self._replacing):
            raise Replaced(self._why)

    @contextlib.contextmanager
    def within(self, expected: str | None) -> Iterator[None]:
        """Checks `expected` as `check` does, then prevents replacement of the rows inside the block."""
        with self._changed:
            self.check(expected)
            if self._replacing:  # Also a client that names no incarnation.
                raise Replaced(self._why)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def replaced(self, why: str) -> Iterator[None]:
        """Runs the block, which replaces the rows, when no request runs and no other block replaces rows.

        `why` tells clients of the former rows the reason. Raises Lost if a request runs for too long.
        """
        with self._changed:
            self._replacing, self._why = self._replacing + 1, why
            if not self._changed.wait_for(lambda: not self._under_way, _WAIT_SECONDS):
                self._replacing -= 1  # The rows and their name do not change.
                raise Lost(f"a request has held the rows for {_WAIT_SECONDS} s; check whether the machine hangs")
            self._number, self._under_way = self._number + 1, 1
        try:
            yield
        finally:
            with self._changed:
                self._number += 1  # A client that connected meanwhile may have read incomplete rows.
                self._replacing, self._under_way = self._replacing - 1, self._under_way - 1
                self._changed.notify_all()
