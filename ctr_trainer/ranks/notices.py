"""Which rank this process is, the notices that the ranks of a job leave for each other, and who ended without one."""

import contextlib
import dataclasses
import functools
import hmac
import http.client
import os
import socket
import time
import urllib.parse
from collections.abc import Callable

import psutil

# Each process that `launch` has started has it in its environment, as JOB.START.
ATTEMPT = "CTR_TRAINER_ATTEMPT"
_SCOPE = "ctr_trainer"
# With a shorter timeout, a busy server would meet a broken connection and print a traceback.
_SECONDS, _SILENT_SECONDS = 10.0, 30.0
_SIGNED = "hmac-sha256:"
_ANSWER_SECONDS = 1.5
_POLL_SECONDS = 0.1
_WITHOUT_MESSAGE = "without an error message: it was killed, as the system does when memory runs out, or it crashed"


@dataclasses.dataclass(frozen=True)
class Placement:
    """A rank among all ranks, and among the ranks of its host.

    Attributes:
      rank, size: the rank, and the number of ranks.
      host_ranks: the ranks of its host.
    """

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
        """Name of the job that `launch` has started this process for; "" without it."""
        return os.environ.get(ATTEMPT, "").partition(".")[0]

    @property
    def is_first_of_host(self) -> bool:
        """Whether it is the first rank of its host."""
        return self.rank == self.host_ranks[0]

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are on its host."""
        return len(self.host_ranks) == self.size


class Notices:
    """Texts by key, the same for all ranks on all hosts.

    They are kept by the server that `horovodrun` runs for its ranks to find each other; a request takes about a
    millisecond. If the server does not answer in time, nothing is kept and nothing is found for 30 s; with another
    launcher, nothing ever is.

    That server accepts texts from any program. So texts are signed once the ranks share a secret, and from then on a
    text without a valid signature is ignored.

    Caveat: any program that reaches the server can still remove or replace a text, which is then missing.

    Args:
      address: `host:port` of the server; "" for none; also an attribute.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._silent_until, self._secret = 0.0, b""

    @classmethod
    def of_this_job(cls) -> "Notices":
        """Returns the Notices of the job for which `horovodrun` has started this process, one for the whole process."""
        address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
        return _of(f"{address}:{port}" if address and port else "")

    def sign(self, secret: str) -> None:
        """Signs all further texts with a secret that all ranks have, and ignores other texts."""
        self._secret = secret.encode()

    def is_here(self) -> bool:
        """Returns whether the server runs on this host."""
        try:
            socket.create_server(
                (self.address.rpartition(":")[0], 0)
            ).close()  # Only an address of this host can be listened on.
        except OSError:
            return False
        return True

    def put(self, key: str, text: str) -> None:
        """Keeps a text under `key`, in place of an earlier one."""
        signed = f"{_SIGNED}{self._signature(key, text)} {text}" if self._secret else text
        with contextlib.suppress(OSError):
            self._ask("PUT", key, signed.encode())

    def get(self, key: str) -> str | None:
        """Returns the text under `key`; None if there is no text, or no signed text."""
        try:
            found = self._ask("GET", key)
        except OSError:
            return None
        if found is None:
            return None
        text = found.decode(errors="replace")
        is_signed = text.startswith(_SIGNED)
        signature, _, signed = text.removeprefix(_SIGNED).partition(" ")
        if not self._secret:  # Another rank may have the secret a moment earlier.
            return signed if is_signed else text
        if not is_signed or not hmac.compare_digest(signature.encode(), self._signature(key, signed).encode()):
            return None
        return signed

    def is_missing(self, key: str) -> bool:
        """Returns whether the server has no text under `key`, signed or not; False if the server does not answer."""
        try:
            return self._ask("GET", key) is None
        except OSError:
            return False

    def _signature(self, key: str, text: str) -> str:
        return hmac.digest(self._secret, f"{key}\0{text}".encode(), "sha256").hex()

    def _ask(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        """Returns the server's answer; None if it has no text under `key`.

        Raises:
          OSError: the server does not answer.
        """
        if not self.address or time.monotonic() < self._silent_until:
            raise ConnectionRefusedError(self.address)
        path = "/".join(["", _SCOPE, urllib.parse.quote(key, safe="")])  # The server takes two parts, no more.
        for is_last in (False, True):
            try:
                with contextlib.closing(http.client.HTTPConnection(self.address, timeout=_SECONDS)) as connection:
                    connection.request(method, path, body)
                    answer = connection.getresponse()
                    if answer.status in (http.client.OK, http.client.NOT_FOUND):
                        return answer.read() if answer.status == http.client.OK else None
            except TimeoutError:
                self._silent_until = time.monotonic() + _SILENT_SECONDS  # Another request would wait as long.
                raise
            except (OSError, http.client.HTTPException) as error:
                if is_last:
                    raise ConnectionError(str(error)) from error
            # The server closes a connection whose request does not come within 3 s, as on a busy machine.
        raise ConnectionError(f"{self.address} refuses a request")


@functools.cache
def _of(address: str) -> Notices:
    return Notices(address)


class RollCall:
    """Distinguishes a rank that was killed from ranks that end because of it.

    Each rank writes its process and its host into the job's notices. A rank that notices the end of the job writes that
    too, and names the ranks of its own host whose process has ended without doing so. A process that is stopped cannot
    end by itself, so it is killed.

    Args:
      notices: `Notices` of the job.
      placement: `Placement` of this process.
    """

    def __init__(self, notices: Notices, placement: Placement) -> None:
        self._notices, self._placement = notices, placement
        self.introduce()

    def introduce(self) -> None:
        """Writes which process this rank is."""
        if self._placement.size > 1:
            self._notices.put(f"process.{self._placement.rank}", f"{os.getpid()} {socket.gethostname()}")

    def leave(self) -> None:
        """Writes that this rank ends."""
        self._notices.put(f"ends.{self._placement.rank}", "")

    def end(self) -> None:
        """Writes that this rank ends, and which processes of its host have ended without an error message."""
        self.leave()
        self._name_those_gone(_kill_if_stopped)

    def is_one_lost(self) -> bool:
        """Returns whether a rank has ended without an error message; call it only while no rank may end in order."""
        self._name_those_gone()
        return bool(self._ranks_of("lost"))

    def lost(self) -> str:
        """Returns a sentence that names the ranks that ended without an error message, or ""; call it after `end`."""
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
        """Returns a sentence that names the ranks that have never written anything; "" if there are none."""
        others = [rank for rank in range(self._placement.size) if rank != self._placement.rank]
        # A text that is not signed counts: this rank may have the secret a moment before another one.
        unheard = [str(rank) for rank in others if self._notices.is_missing(f"process.{rank}")]
        if not unheard:
            return ""
        ranks = f"rank{'s' * (len(unheard) > 1)} {', '.join(unheard)}"
        return f"nothing was heard of {ranks}, whose host may not reach horovodrun at {self._notices.address}"

    def _name_those_gone(self, has_gone_too: Callable[[int, int], bool] = lambda process, rank: False) -> None:
        """Writes which processes of this host have ended without an error message, or count as such."""
        for rank in self._placement.host_ranks:
            process, host = self._process(rank)
            if host != socket.gethostname():
                continue
            is_gone = not _runs(int(process)) or has_gone_too(int(process), rank)
            if is_gone and self._notices.get(f"ends.{rank}") is None:
                self._notices.put(f"lost.{rank}", "")

    def _ranks_of(self, kind: str) -> list[int]:
        """Returns the ranks that have such a notice."""
        return [rank for rank in range(self._placement.size) if self._notices.get(f"{kind}.{rank}") is not None]

    def _process(self, rank: int) -> tuple[str, str]:
        """Returns a rank's process id as text, and its host; "" for what is not known."""
        process, _, host = (self._notices.get(f"process.{rank}") or "").partition(" ")
        return process, host


def _kill_if_stopped(process: int, rank: int) -> bool:
    """Kills the process of a rank if it is stopped, for example by SIGSTOP; returns whether it was."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process)
        if found.status() == psutil.STATUS_STOPPED and found.environ().get("HOROVOD_RANK") == str(rank):
            found.kill()
            return True
    return False


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
