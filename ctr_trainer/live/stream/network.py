"""Connects the other workers to rank 0's `Coordinator`: JSON over connections that a key of the job authenticates."""

import contextlib
import dataclasses
import json
import multiprocessing.connection
import os
import socket
import struct
import threading
from typing import Any

from ctr_trainer.live.stream.coordinator import Coordinator, NotYet
from ctr_trainer.live.stream.plan import Directive, Report
from ctr_trainer.live.stream.source import Range
from ctr_trainer.system.messages.errors import LOST, REFUSED, Lost, UserError, status_of
from ctr_trainer.system.processes.waiting import call_within

_LOOK_SECONDS, _CONNECT_SECONDS, _BACKLOG = 0.5, 60, 4096
_NOT_YET = "not yet"  # The answer to a request for a share that rank 0 has not planned; the worker asks again.


class CoordinatorServer:
    """Answers the requests of the other workers on an address of this host."""

    def __init__(self, coordinator: Coordinator, host: str, key: bytes) -> None:
        self._coordinator, self._key = coordinator, key
        self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._is_closed = False
        coordinator.closing.append(self._close)
        threading.Thread(target=self._accept, name="stream server", daemon=True).start()

    def _close(self) -> None:
        """Stops accepting connections. The open connections are answered until the process ends."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Ends `accept`, which `close` alone does not.
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):  # The client has gone, or the listener was closed.
                threading.Thread(target=self._answer, args=(self._listener.accept()[0],), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        """Answers the requests of a client that proves within a time limit that it has the key of this job."""
        errors = EOFError, OSError, multiprocessing.AuthenticationError
        with (
            contextlib.suppress(*errors),
            peer,
            multiprocessing.connection.Connection(os.dup(peer.fileno())) as connection,
        ):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _CONNECT_SECONDS, 0))
            multiprocessing.connection.deliver_challenge(connection, self._key)
            multiprocessing.connection.answer_challenge(connection, self._key)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
            while True:
                asked = json.loads(connection.recv_bytes())
                try:
                    answer = {"answer": self._answered(**asked)}
                except Exception as error:
                    text = str(error) if isinstance(error, UserError) else f"rank 0 cannot read the stream: {error!r}"
                    answer = {"error": text, "status": status_of(error)}
                connection.send_bytes(json.dumps(answer).encode())

    def _answered(
        self, what: str, rank: int, number: int, seconds: float | None = None, report: dict[str, Any] | None = None
    ) -> Any:
        if what == "share":
            try:
                return self._coordinator.share(number, rank, seconds)
            except NotYet:
                return _NOT_YET
        if what == "directive":
            return dataclasses.asdict(self._coordinator.directive(number, rank))
        assert report is not None
        watermarks = {int(p): offset for p, offset in report["watermarks"].items()}
        rest = [Range(*each) for each in report["rest"]]
        self._coordinator.report(number, Report(**{**report, "watermarks": watermarks, "rest": rest}), rank)
        return None


class RemoteCoordinator:
    """A client with the methods of rank 0's `Coordinator`. Different threads may request shares and directives.

    `address`: (host, port) of rank 0's `CoordinatorServer`. `timeout`: longest wait for an answer, in seconds.
    """

    def __init__(self, address: tuple[str, int], key: bytes, rank: int, timeout: float) -> None:
        self._rank, self._timeout, self._is_closed = rank, timeout, False
        try:
            self._shares, self._directives = (
                call_within(_CONNECT_SECONDS, lambda: multiprocessing.connection.Client(address, authkey=key))
                for _ in range(2)
            )
        except (OSError, EOFError, multiprocessing.AuthenticationError) as error:
            raise UserError(
                f"rank {rank} cannot reach rank 0 at {address[0]}:{address[1]}, which plans the reading of the stream: "
                f"{error}; the hosts of a job must reach each other"
            ) from error

    def share(self, window: int) -> list[Range] | None:
        while not self._is_closed:
            # Rank 0 answers within `seconds`, so only its silence lasts for the timeout, and not a quiet stream.
            found = self._ask(self._shares, what="share", number=window, seconds=self._timeout / 4)
            if found != _NOT_YET:
                return None if found is None else [Range(*each) for each in found]
        return None

    def report(self, window: int, report: Report) -> None:
        self._ask(self._shares, what="report", number=window, report=dataclasses.asdict(report))

    def directive(self, number: int) -> Directive:
        found = self._ask(self._directives, what="directive", number=number)
        return Directive("end") if found is None else Directive(**found)

    def fail(self, error: BaseException) -> None:
        """Does nothing, because this worker ends, and the job ends with it."""

    def close(self) -> None:
        self._is_closed = True

    def _ask(self, connection: multiprocessing.connection.Connection, **asked: Any) -> Any:
        """Sends a request and returns the answer, or raises rank 0's error; None after `close`."""
        try:
            connection.send_bytes(json.dumps({"rank": self._rank, **asked}).encode())
            waited = 0.0
            while not connection.poll(_LOOK_SECONDS):
                waited += _LOOK_SECONDS
                if self._is_closed:
                    return None
                if waited > self._timeout:
                    raise Lost(f"rank 0, which plans the reading of the stream, has not answered for {waited:.0f} s")
            answer = json.loads(connection.recv_bytes())
        except (OSError, EOFError) as error:
            # Not an error of this rank: the record of rank 0, or the one of its kill, is the cause.
            raise ConnectionError(
                f"rank 0 has ended, and rank {self._rank} waits for its plan of the stream"
            ) from error
        if "error" in answer:
            raise {LOST: Lost, REFUSED: UserError}.get(answer["status"], RuntimeError)(answer["error"])
        return answer["answer"]
