"""Shares short texts among ranks through horovodrun's server."""

import contextlib
import dataclasses
import functools
import http.client
import os
import time
import urllib.parse

from ctr_trainer.system.processes import reach

# Environment variable that `launch` sets for each process that it starts. Its value has the form JOB.START.
ATTEMPT = "CTR_TRAINER_ATTEMPT"
_SCOPE = "ctr_trainer"
# With a shorter timeout, connections to a busy server would break, and the server would print tracebacks.
_SECONDS, _SILENT_SECONDS = 10.0, 30.0
_MOST_BYTES = 1 << 20


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

    Caveat: the server accepts and changes texts for any program that reaches it. Therefore texts only describe why a
    job cannot start or has ended. No text changes what is trained or saved.

    `address`: `host:port` of the server; "" for none. Also an attribute.

    `meetings`: number of meetings of the ranks that this process has begun, see `agreement.meeting`.
    """

    def __init__(self, address: str) -> None:
        self.address, self.meetings = address, 0
        self._silent_until = 0.0

    @classmethod
    def of_this_job(cls) -> "Notices":
        """Returns the `Notices` of this process's job. All calls return the same object."""
        address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
        return _of(f"{address}:{port}" if address and port else "")

    def is_here(self) -> bool:
        """Whether the server runs on this host; True without a server."""
        return not self.address or reach.is_here(self.address.rpartition(":")[0])

    def put(self, key: str, text: str) -> None:
        """Stores a text under `key`, replacing an earlier text."""
        with contextlib.suppress(OSError):
            self._ask("PUT", key, text.encode())

    def get(self, key: str) -> str | None:
        """Returns the text under `key`; None if there is none, if it is too long, or if the server does not answer."""
        try:
            found = self._ask("GET", key)
        except OSError:
            return None
        return None if found is None or len(found) > _MOST_BYTES else found.decode(errors="replace")

    def _ask(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        """Returns the server's answer; None if it has no text under `key`. Raises OSError if it does not answer."""
        if not self.address or time.monotonic() < self._silent_until:
            raise ConnectionRefusedError(self.address)
        path = "/".join(["", _SCOPE, urllib.parse.quote(key, safe="")])  # The server requires exactly two parts.
        for is_last in (False, True):
            try:
                with contextlib.closing(http.client.HTTPConnection(self.address, timeout=_SECONDS)) as connection:
                    connection.request(method, path, body)
                    answer = connection.getresponse()
                    if answer.status in (http.client.OK, http.client.NOT_FOUND):
                        return answer.read(_MOST_BYTES + 1) if answer.status == http.client.OK else None
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
