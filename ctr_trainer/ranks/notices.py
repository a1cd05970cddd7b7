"""Shares short texts among ranks through horovodrun's server, and detects ranks that ended without an error message."""

import contextlib
import dataclasses
import functools
import hmac
import http.client
import os
import socket
import time
import urllib.parse

import psutil

from ctr_trainer.system.processes import reach

# Environment variable that `launch` sets for each process that it starts. Its value has the form JOB.START.
ATTEMPT = "CTR_TRAINER_ATTEMPT"
_SCOPE = "ctr_trainer"
# With a shorter timeout, connections to a busy server would break, and the server would print tracebacks.
_SECONDS, _SILENT_SECONDS = 10.0, 30.0
_SIGNED = "hmac-sha256:"
_ANSWER_SECONDS = 1.5
_POLL_SECONDS = 0.1
_WITHOUT_MESSAGE = "without an error message: it was killed, as the system does when memory runs out, or it crashed"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The rank of a process, and the ranks on its host."""

    rank: int
    size: int
    host_ranks: range

    @classmethod
    def of_this_process(cls) -> "Placement":
        """Returns the placement of this process; rank 0 of 1 without `horovodrun`."""
        rank, size, host_rank, host_size = (
            int(os.environ.get(f"HOROVOD_{what}", default))
            for what, default in (("RANK", 0), ("SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_SIZE", 1))
        )
        first = rank - host_rank  # horovodrun numbers the ranks host by host.
        return cls(rank, size, range(first, first + host_size))

    @property
    def job(self) -> str:
        """Name of the job if `launch` has started this process; otherwise ""."""
        return os.environ.get(ATTEMPT, "").partition(".")[0]

    @property
    def is_first_of_host(self) -> bool:
        """Whether this rank is the first rank of its host."""
        return self.rank == self.host_ranks[0]

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are on one host."""
        return len(self.host_ranks) == self.size


class Notices:
    """A key-value store of short texts that all ranks on all hosts share.

    The rendezvous server of `horovodrun` stores the texts; a request takes about a millisecond. If the server does not
    answer in time, no text is stored or found for 30 s. With another launcher, no text is ever stored.

    The server accepts texts from any program. Therefore, once the ranks share a secret, they sign their texts and
    ignore texts without a valid signature.

    Caveat: any program that reaches the server can still remove or replace a text, which is then missing.

    Args:
      address: `host:port` of the server; "" for none. Also an attribute.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._silent_until, self._secret = 0.0, b""

    @classmethod
    def of_this_job(cls) -> "Notices":
        """Returns the `Notices` of this process's job. All calls return the same object."""
        address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
        return _of(f"{address}:{port}" if address and port else "")

    def sign(self, secret: str) -> None:
        """Signs all further texts with a secret that all ranks share, and ignores other texts."""
        self._secret = secret.encode()

    def is_here(self) -> bool:
        """Whether the server runs on this host; True without a server."""
        return not self.address or reach.is_here(self.address.rpartition(":")[0])

    def put(self, key: str, text: str) -> None:
        """Stores a text under `key`, replacing an earlier text."""
        signed = f"{_SIGNED}{self._signature(key, text)} {text}" if self._secret else text
        with contextlib.suppress(OSError):
            self._ask("PUT", key, signed.encode())

    def get(self, key: str) -> str | None:
        """Returns the text under `key`; None if there is no text, or if it has no valid signature."""
        try:
            found = self._ask("GET", key)
        except OSError:
            return None
        if found is None:
            return None
        text = found.decode(errors="replace")
        is_signed = text.startswith(_SIGNED)
        signature, _, signed = text.removeprefix(_SIGNED).partition(" ")
        if not self._secret:  # Another rank may have received the secret earlier.
            return signed if is_signed else text
        if not is_signed or not hmac.compare_digest(signature.encode(), self._signature(key, signed).encode()):
            return None
        return signed

    def is_missing(self, key: str) -> bool:
        """Whether the server has no text under `key`, signed or not; False if the server does not answer."""
        try:
            return self._ask("GET", key) is None
        except OSError:
            return False

    def _signature(self, key: str, text: str) -> str:
        return hmac.digest(self._secret, f"{key}\0{text}".encode(), "sha256").hex()

    def _ask(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        """Sends a request and returns the server's answer; None if it has no text under `key`.

        Raises:
          OSError: the server does not answer.
        """
        if not self.address or time.monotonic() < self._silent_until:
            raise ConnectionRefusedError(self.address)
        path = "/".join(["", _SCOPE, urllib.parse.quote(key, safe="")])  # The server requires exactly two parts.
        for is_last in (False, True):
            try:
                with contextlib.closing(http.client.HTTPConnection(self.address, timeout=_SECONDS)) as connection:
                    connection.request(method, path, body)
                    answer = connection.getresponse()
                    if answer.status in (http.client.OK, http.client.NOT_FOUND):
                        return answer.read() if answer.status == http.client.OK else None
            except TimeoutError:
                self._silent_until = time.monotonic() + _SILENT_SECONDS  # Another request would time out as well.
                raise
            except (OSError, http.client.HTTPException) as error:
                if is_last:
                    raise ConnectionError(str(error)) from error
            # The server closes a connection if the request does not arrive within 3 s, as may happen on a busy machine.
        raise ConnectionError(f"{self.address} refuses a request")


@functools.cache
def _of(address: str) -> Notices:
    return Notices(address)


class RollCall:
    """Distinguishes ranks that were killed from ranks that end because of them.

    Each rank writes its process id and its host into the job's notices. A rank that notices the end of the job writes
    that it ends, and names the ranks of its host whose processes ended without writing this. It kills stopped processes
    (SIGSTOP), which cannot end themselves.
    """

    def __init__(self, notices: Notices, placement: Placement) -> None:
        self._notices, self._placement = notices, placement
        self.introduce()

    def introduce(self) -> None:
        """Writes the process id and the host of this rank."""
        if self._placement.size > 1:
            self._notices.put(f"process.{self._placement.rank}", f"{os.getpid()} {socket.gethostname()}")

    def leave(self) -> None:
        """Writes that this rank ends."""
        self._notices.put(f"ends.{self._placement.rank}", "")

    def end(self) -> None:
        """Writes that this rank ends, and the ranks of its host that have ended without an error message."""
        self.leave()
        self._name_those_gone(kills_stopped=True)

    def is_one_lost(self) -> bool:
        """Whether a rank has ended without an error message. Call it only while no rank may end in order."""
        self._name_those_gone()
        return bool(self._ranks_of("lost"))

    def lost(self) -> str:
        """Returns a sentence that names the ranks that ended without an error message, or "". Call it after `end`."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not (lost := self._ranks_of("lost")):
            if time.monotonic() > deadline or len(self._ranks_of("ends")) == self._placement.size:
                return ""
            time.sleep(_POLL_SECONDS)
        hosts: dict[str, list[str]] = {}
        for rank in lost:
            hosts.setdefault(self._process(rank)[1], []).append(str(rank))
        named = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} on {host}" for host, ranks in hosts.items()]
        return f"{' and '.join(named)} ha{'ve' if len(lost) > 1 else 's'} ended {_WITHOUT_MESSAGE}"

    def unheard(self) -> str:
        """Returns a sentence that names the ranks that have never written a text; "" if there are none."""
        others = [rank for rank in range(self._placement.size) if rank != self._placement.rank]
        # Unsigned texts count, because this rank may have received the secret before another one.
        unheard = [str(rank) for rank in others if self._notices.is_missing(f"process.{rank}")]
        if not unheard:
            return ""
        ranks = f"rank{'s' * (len(unheard) > 1)} {', '.join(unheard)}"
        return f"nothing was heard of {ranks}, whose host may not reach horovodrun at {self._notices.address}"

    def _name_those_gone(self, kills_stopped: bool = False) -> None:
        """Writes which ranks of this host ended without an error message, after killing stopped ranks if requested."""
        for rank in self._placement.host_ranks:
            process, host = self._process(rank)
            if host != socket.gethostname():
                continue
            is_gone = not psutil.pid_exists(int(process)) or kills_stopped and _kill_if_stopped(int(process), rank)
            if is_gone and self._notices.get(f"ends.{rank}") is None:
                self._notices.put(f"lost.{rank}", "")

    def _ranks_of(self, kind: str) -> list[int]:
        """Returns the ranks that have a notice of this kind."""
        return [rank for rank in range(self._placement.size) if self._notices.get(f"{kind}.{rank}") is not None]

    def _process(self, rank: int) -> tuple[str, str]:
        """Returns a rank's process id, as text, and its host; each is "" if unknown."""
        process, _, host = (self._notices.get(f"process.{rank}") or "").partition(" ")
        return process, host


def _kill_if_stopped(process: int, rank: int) -> bool:
    """Kills the process of a rank if it is stopped, for example by SIGSTOP; returns whether it was stopped."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process)
        if found.status() == psutil.STATUS_STOPPED and found.environ().get("HOROVOD_RANK") == str(rank):
            found.kill()
            return True
    return False
