"""The connection to one embedding service."""

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.lease import LeaseHeld
from ctr_trainer.embedding.service.row_requests import SentColumns
from ctr_trainer.embedding.service.security import ClientSecurity, is_loopback
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import ServiceLost, UserError
from ctr_trainer.system.processes import reach
from ctr_trainer.system.processes.waiting import Watchdog

_log = logging.getLogger(__name__)
# An answer takes milliseconds. After this number of seconds the service counts as silent.
LIMIT_SECONDS = 5.0
# Seconds to wait for a service that has never answered, because it may be starting. Workers that `launch` restarts wait
# `timeout` seconds instead, because the service may be moving to another host.
_FIRST_ANSWER_SECONDS = 15.0
_FIRST_BACKOFF = 0.05
_LONGEST_BACKOFF = 2.0
# A snapshot takes as long as its disk needs. If the service ends, the broken connection shows it earlier.
_SNAPSHOT_SECONDS, _OF_SNAPSHOTS = 3600, ("publish", "copy", "restore")
# Seconds between two requests for a lease that another training holds, and the timeout of a renewal.
_LEASE_LOOK_SECONDS = 1.0
_RENEWAL_SECONDS = 2.0
# Maximum seconds from the end of a process's connections until its end is known, and seconds between two checks.
_END_SECONDS, _LOOK_SECONDS = 1.0, 0.05
_RETRIED = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
)
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


class Silence:
    """Reports a service in the log while it does not answer, and totals in `seconds` the time without answers.

    To a worker whose requests wait, a service that hangs otherwise looks like slow input or slow syncs.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self._watchdog = Watchdog("this worker", math.inf, warning=LIMIT_SECONDS)
        self._watchdog.explain = lambda: (
            f"it, its host or the network hangs; the job ends if this lasts longer than service_timeout={timeout:g} s"
        )
        self._address = address
        self._lock = threading.Lock()
        self._counted_until = -math.inf
        self.seconds = 0.0

    @contextlib.contextmanager
    def waiting(self, request: str) -> Iterator[None]:
        """Watches one request, the body of the `with` statement."""
        began = time.monotonic()
        try:
            with self._watchdog.waiting(f"the embedding service {self._address} to answer `{request}`"):
                yield
        finally:
            ended = time.monotonic()
            if ended - began > LIMIT_SECONDS:
                with self._lock:  # Each second counts once, even if several requests wait.
                    self.seconds += max(ended - max(began, self._counted_until), 0.0)
                    self._counted_until = ended

    def close(self) -> None:
        self._watchdog.close()


class Shard:
    """The connection to service `number`, counted from 0, of `shards`; see `ServiceClient` for the other arguments.

    `ended` is the function for this service; None if the end of its process cannot be known.
    """

    def __init__(
        self,
        address: str,
        number: int,
        shards: int,
        timeout: float,
        security: ClientSecurity,
        lease: Owner | None = None,
        ended: Callable[[], str | None] | None = None,
        by_socket: bool = False,
    ) -> None:
        self.address = address
        self.number = number
        self._shards = shards
        self._timeout = timeout
        self._incarnation: str | None = None
        self.is_only_job = False
        self._waits = lease is not None and lease.job != ""
        self._lease = lease
        self._security, self._headers = security, security.headers
        self._ended = ended
        self._columns = SentColumns()
        self._may_share = lease is not None and not by_socket and is_loopback(address.rpartition(":")[0])
        self.silence = Silence(address, timeout)
        try:
            self._flight = security.connect(address, _CHANNEL)
        except pa.ArrowException as error:
            raise UserError(f"embedding service {address!r}: expected host:port: {error}") from None

    def hello(self) -> None:
        """Takes or presents the lease, and gets the service's incarnation.

        If the holder of a lease died without returning it, this waits until the lease expires; if it lives, this raises
        UserError.
        """
        lease = self._lease and dataclasses.asdict(self._lease)
        body, first_heard = {"shard": self.number, "shards": self._shards, "lease": lease}, None
        while True:
            try:
                self._incarnation = None
                answer = self.action("hello", body)
                self._incarnation, self.is_only_job = answer["incarnation"], answer.get("is_only_job", False)
                self._waits = True
                if self._may_share:
                    self._columns.share(lambda offer: self.action("read_memory", offer)["is_read"])
                return
            except LeaseHeld as held:
                if first_heard not in (None, held.heard):
                    raise UserError(
                        f"embedding service {self.address} is used by {held.holder}. A service has the rows of one "
                        "training at a time: wait until it ends, stop it, or use another service"
                    ) from None
                if first_heard is None:
                    _log.warning(
                        "embedding service %s was used by %s: taking it over in %.0f s if that one sends nothing until "
                        "then",
                        self.address,
                        held.holder,
                        held.left,
                    )
                first_heard = held.heard
                time.sleep(min(max(held.left, 0.05), _LEASE_LOOK_SECONDS))

    def restore(self, body: dict[str, Any]) -> None:
        """Calls `restore`, and continues with the new rows."""
        self._incarnation = self.action("restore", body)["incarnation"]

    def look(self) -> None:
        """Raises ServiceLost if the process of the service is known to have ended."""
        if ending := self._ended and self._ended():
            raise ServiceLost(f"embedding service {self.address} has ended: {ending}")

    def at_once(self, name: str) -> None:
        """Asks once to `renew` or `release` the lease; does not wait long if the service is slow to answer."""
        options = flight.FlightCallOptions(timeout=_RENEWAL_SECONDS, headers=self._headers)
        with contextlib.suppress(pa.ArrowException):  # The next row request reports the error.
            list(self._flight.do_action(flight.Action(name, wire.to_json(self._signed({}))), options))

    def action(self, name: str, body: dict[str, Any]) -> Any:
        def call(options: flight.FlightCallOptions) -> Any:
            action = flight.Action(name, wire.to_json(self._signed(body)))
            return _read(iter(list(self._flight.do_action(action, options))))

        return self._retried(name, call, _SNAPSHOT_SECONDS if name in _OF_SNAPSHOTS else None)

    def begin_save(self, body: dict[str, Any]) -> tuple[str | None, Callable[[], list[FileEntry]]]:
        """Makes the service capture its rows, which it then writes.

        Returns (the delta's base snapshot or None, a function that waits for the files and returns them). Both may
        raise ServiceLost.
        """

        def begin(options: flight.FlightCallOptions) -> tuple[Any, Iterator[flight.Result]]:
            results = self._flight.do_action(flight.Action("save", wire.to_json(self._signed(body))), options)
            return _read(results), results

        since, results = self._retried("save", begin, _SNAPSHOT_SECONDS)

        def finish() -> list[FileEntry]:
            try:
                with wire.meanings(self.address):
                    return _read(results)
            except _RETRIED as error:  # A repeated request would save other rows.
                deadline = time.monotonic() + _END_SECONDS  # By then, the end of the process must be known.
                while self._ended and time.monotonic() < deadline:
                    self.look()
                    time.sleep(_LOOK_SECONDS)
                raise ServiceLost(
                    f"embedding service {self.address} aborted `save`: {wire.first_line(error)}"
                ) from None

        return since, finish

    def rows(
        self,
        request: dict[str, Any],
        columns: Sequence[np.ndarray],
        read: Callable[[Iterator[flight.Result], Sequence[np.ndarray]], Any],
    ) -> Any:
        """Returns read(results, columns) of a row request with these columns, the first of which is the keys."""
        op = request["op"]
        with self._columns.sending(self._signed(request), columns) as body, self.silence.waiting(op):
            action = flight.Action(op, body)
            return self._retried(op, lambda options: read(self._flight.do_action(action, options), columns))

    def close(self) -> None:
        self.silence.close()
        self._flight.close()
        self._columns.close()

    def _signed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns a request with this client's lease and the expected incarnation."""
        if self._incarnation is None:
            return request
        return {"lease": self._lease and self._lease.token, **request, "incarnation": self._incarnation}

    def _retried(
        self, what: str, call: Callable[[flight.FlightCallOptions], Any], call_seconds: float | None = None
    ) -> Any:
        """Repeats `call(options)` until the service answers, for at most `timeout` seconds. Returns the answer."""
        waited_from, backoff, failure = time.monotonic(), _FIRST_BACKOFF, None
        timeout = self._timeout if self._waits else min(self._timeout, _FIRST_ANSWER_SECONDS)
        while True:
            left = waited_from + timeout - time.monotonic()
            if left <= 0:
                raise ServiceLost(
                    f"embedding service {self.address} did not answer `{what}` within {timeout:g} s: "
                    f"{reach.why_not(self.address) or failure}"
                )
            # An attempt gets only part of the time, so that a call on a silently broken connection is retried.
            seconds = call_seconds or min(left, max(timeout / 3, 1.0))
            try:
                with wire.meanings(self.address):
                    return call(flight.FlightCallOptions(timeout=seconds, headers=self._headers))
            except _RETRIED as error:
                if what == "hello" and failure is None and (wrong := self._security.what_is_wrong(self.address)):
                    raise UserError(f"embedding service {self.address}: {wrong}") from None
                if call_seconds and failure is None:
                    waited_from = time.monotonic()  # A snapshot may take longer than `timeout`.
                failure = wire.first_line(error)
                self.look()
                time.sleep(min(backoff, left))
                backoff = min(2 * backoff, _LONGEST_BACKOFF)


def _read(results: Iterator[flight.Result]) -> Any:
    """Returns the decoded next result of an action."""
    result = next(results, None)
    if result is None:
        raise flight.FlightUnavailableError("the answer was cut off")
    return wire.json.loads(result.body.to_pybytes())
