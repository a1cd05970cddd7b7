"""The interface of streams, which Kafka and Redis implement: partitions of records with ascending offsets."""

import contextlib
import dataclasses
import gc
import json
import logging
import os
import pathlib
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ctr_trainer.data.input_schemes import STREAMS
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_HOST = re.compile(r"(\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*(%[\w.-]+)?\]|[^\]\[:@#%\s]+)(:(?P<port>[1-9]\d{0,4}))?")
_PAUSE_SECONDS, _WARN_SECONDS = 60.0, 15.0
Letters = list[dict[str, object]]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disables Python's garbage collection, of all threads, which would scan thousands of messages without cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Unavailable(Exception):
    """The brokers do not currently answer. The message names the failed request and the brokers."""


class Message(NamedTuple):
    """One record of a stream.

    Attributes:
      seconds: event time in the stream, in seconds since 1970.
      value: content; None for a record without content.
    """

    partition: int
    offset: int
    seconds: float
    value: bytes | None

    @property
    def mark(self) -> list[int]:
        """The offset, the time in milliseconds, and the CRC-32 of the value, by which a stream is recognized."""
        return [self.offset, round(self.seconds * 1000), zlib.crc32(self.value or b"")]


class Range(NamedTuple):
    """The records of a partition with offsets in [start, stop).

    `row`: number of rows at the beginning of the first record to skip, because they are already trained.
    """

    partition: int
    start: int
    stop: int
    row: int = 0


class StreamSource(Protocol):
    """A stream. Offsets are ascending integers within a partition, with possible gaps.

    Sources are not thread-safe. Methods that send requests to the brokers raise `Unavailable` if there is no answer.

    Attributes:
      name: name of the stream in messages and in checkpoints, without hosts, such as `kafka topic clicks`.
      address: the hosts in the URL, for messages.
      has_gaps: whether `count` is an upper bound, since offsets without a record count too.
    """

    name: str
    address: str
    has_gaps: bool

    @property
    def trouble(self) -> str:
        """Why the brokers did not answer the last time, for messages; "" if unknown."""

    def partitions(self) -> list[int]:
        """Returns the numbers of the partitions, in order. Raises UserError: there is no such stream."""

    def identity(self) -> str:
        """Returns an ID that another stream of the same name does not have; "" if the brokers have none."""

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        """Returns, for each partition, the offset of the first record that still exists."""

    def latest(self, partitions: Sequence[int], exact: bool = False) -> dict[int, int]:
        """Returns, for each partition, the offset after the last record; a lower one only if not `exact`."""

    def lost(self, places: dict[int, int]) -> dict[int, str]:
        """Describes the loss of each partition that has lost records at or after an offset, or that ends before it."""

    def at_time(self, partitions: Sequence[int], seconds: float) -> dict[int, int]:
        """Returns, for each partition, the offset of the first record at or after a time, or the latest offset."""

    def count(self, partition: int, start: int, stop: int, most: int) -> int:
        """Returns the number of records in [start, stop), or `most` if there are more."""

    def backlog(self, partition: int, start: int, stop: int) -> int:
        """Returns an estimate of the number of records in [start, stop), without reading them."""

    def after(self, partition: int, start: int, stop: int, count: int) -> int:
        """Returns the offset after the first `count` records in [start, stop); `stop` if there are fewer."""

    def read(self, place: Range) -> Iterator[list[Message]]:
        """Yields the records of a range as they arrive, in order; [] while none arrive.

        The iterator ends after all records. If the brokers do not answer, it waits for them.

        Raises UserError: a record no longer exists.
        """

    def watermarks(self) -> dict[int, int]:
        """Returns, for each partition, the end that `read` has seen, without a request to the brokers."""

    def commit(self, offsets: dict[int, int]) -> None:
        """Commits offsets to the brokers, whose tools show them. The training does not depend on these offsets."""

    def text(self, offset: int) -> str:
        """Returns an offset in the notation of the stream's own tools."""

    def close(self) -> None:
        """Closes the connections."""


def reading(source: StreamSource, place: Range, log: Seldom) -> Iterator[list[Message]]:
    """Yields what `source.read` yields, and logs what it waits for if no record arrives for 15 s."""
    since = time.monotonic()
    for messages in source.read(place):
        yield messages
        waited = 0.0 if messages else time.monotonic() - since
        since = time.monotonic() if messages else since
        if waited > _WARN_SECONDS:
            log.warning(
                "waiting for records of %s, partition %d, from %s; %.0f s so far: %s",
                *(source.name, place.partition, source.address, waited, source.trouble or "no answer yet"),
            )


def lost_text(source: StreamSource, partition: int, wanted: int, first: int, lost: int | str) -> str:
    """Describes records that were removed before they were trained."""
    return (
        f"{source.name}, partition {partition}: the next record to train has offset {source.text(wanted)}, but the "
        f"first one that {source.address} still has is at offset {source.text(first)}, so {lost} records are lost, or "
        "the stream was created again. To continue without them, set stream_from to the time to begin at, "
        "1970-01-01T00:00:00Z for the first record"
    )


def other_text(source: StreamSource, found: str) -> str:
    """Describes a stream that is not the one of the checkpoint."""
    return (
        f"{source.name}: {found}: {source.address} has another stream of this name, which was created again. To train "
        "on it, set stream_from to the time to begin at, 1970-01-01T00:00:00Z for the first record"
    )


def gone_text(source: StreamSource, partition: int) -> str:
    """Describes a partition that was read and is not there."""
    return (
        f"{source.name} no longer has partition {partition}, in which the training has a position; set stream_from to "
        "another value to begin there"
    )


def cut_text(source: StreamSource, partition: int, wanted: int, last: int) -> str:
    """Describes a partition that ends before the position of the checkpoint."""
    return (
        f"{source.name}, partition {partition}: the checkpoint has read up to offset {source.text(wanted)}, but "
        f"{source.address} has records only up to {source.text(last)}: the stream was created again, or has lost "
        "records. To train on the existing records, set stream_from to the time to begin at"
    )


class DeadLetters:
    """Keeps the records that cannot be trained on: in a stream, in a file if this fails, or else only in the log.

    Training waits for `send`. After a failure, the records of the next 60 s go to the file without another attempt.

    Args:
      path: a file, to which a JSON object per record is appended; None for no file.
      stream: name of a stream in messages; "" for no stream.
      send: f(records) -> (the records that did not reach the stream, why).
    """

    def __init__(
        self,
        path: str | os.PathLike | None = None,
        stream: str = "",
        send: Callable[[Letters], tuple[Letters, str]] = lambda letters: (letters, ""),
    ) -> None:
        self._path, self._stream, self._send = pathlib.Path(path) if path else None, stream, send
        self._failed, self._why = -_PAUSE_SECONDS, ""

    def write(self, letters: Letters) -> None:
        """Stores descriptions of records (stream, partition, offset, row, reason, value).

        Raises UserError: the file cannot be written.
        """
        left = letters
        if time.monotonic() - self._failed >= _PAUSE_SECONDS:
            left, self._why = self._send(letters)
            if left:
                self._failed = time.monotonic()
        if left and self._path:
            lines = "".join(json.dumps(letter) + "\n" for letter in left).encode()
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with open(self._path, "a+b") as file:
                    file.seek(max(file.tell() - 1, 0))
                    file.write(b"\n" + lines if file.read(1) not in (b"", b"\n") else lines)
            except OSError as error:
                raise UserError(
                    f"bad records cannot be written to {self._path}: {error.strerror}. Make space, or correct its "
                    "permissions, and run the same command again"
                ) from error
        if left and self._stream:
            kept = self._path or "the log"
            _log.error(
                "%d bad records did not reach %s and are kept in %s: %s", len(left), self._stream, kept, self._why
            )


@dataclasses.dataclass(frozen=True)
class StreamAddress:
    """The parts of a stream's URL, `kafka://host:port,host:port/topic?dead_letters=other`.

    Attributes:
      hosts: `host:port,...`; the port may be absent.
      name: the topic, or the key of a Redis stream.
      dead_letters: the topic or key for records that cannot be trained on; "" for a file.
    """

    scheme: str
    hosts: str
    name: str
    dead_letters: str = ""

    @classmethod
    def parse(cls, url: str) -> "StreamAddress":
        """Parses a URL. Raises UserError: the URL does not name hosts and a stream."""
        scheme, _, rest = url.partition("://")
        place, _, query = rest.partition("?")
        hosts, _, name = place.partition("/")
        key, _, dead_letters = query.partition("=")
        hosts = ",".join(host.strip() for host in hosts.split(","))
        found = [_HOST.fullmatch(host) for host in hosts.split(",")]
        has_hosts = all(each and int(each["port"] or 1) < 1 << 16 for each in found)
        if scheme not in STREAMS or not has_hosts or not name or (query and key != "dead_letters"):
            raise UserError(
                f"the stream {scheme}://{rest.rpartition('@')[2]}: expected kafka://host:port,host:port/TOPIC or "
                "redis://host:port/KEY, optionally with ?dead_letters=TOPIC; write users and passwords into files"
            )
        return cls(scheme, hosts, name, dead_letters)
