"""What a reader needs of a stream: partitions of records with rising offsets. Kafka and Redis implement it."""

import contextlib
import dataclasses
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ctr_trainer.system.messages.errors import UserError

SCHEMES = ("kafka", "redis", "rediss")


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turns Python's collector of reference cycles off: it would look at thousands of messages, which are in no cycle.

    Caveat: it is off for all threads of the process, so the block should last less than a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Unavailable(Exception):
    """The brokers do not answer now; the message says which request to which brokers failed."""


class Message(NamedTuple):
    """One record of a stream.

    Attributes:
      partition, offset: its place.
      seconds: its event time, in seconds since 1970, as the stream has it.
      value: its content; None for a record without any.
    """

    partition: int
    offset: int
    seconds: float
    value: bytes | None


class Range(NamedTuple):
    """The records of a partition from `start` up to but not including `stop`.

    Attributes:
      partition, start, stop: numbers.
      row: number of rows of the first record to leave out, since they were trained already.
    """

    partition: int
    start: int
    stop: int
    row: int = 0


class StreamSource(Protocol):
    """A stream. Offsets are integers that rise within a partition; there may be gaps between them.

    Each method may be called by one thread at a time. Methods that ask the brokers raise `Unavailable` if they do not
    answer.

    Attributes:
      name: name of the stream in messages and in checkpoints, without hosts, as `kafka topic clicks`.
      address: the hosts that were given, for messages.
    """

    name: str
    address: str

    def partitions(self) -> list[int]:
        """Returns the numbers of the partitions, in order.

        Raises:
          UserError: there is no such stream.
        """

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        """Returns the offset of the first record that is still kept, by partition."""

    def latest(self, partitions: Sequence[int], exact: bool = False) -> dict[int, int]:
        """Returns the offset after the last record, by partition.

        Args:
          partitions: their numbers.
          exact: whether to look at the end of each partition, if its brokers' answer may be too low.
        """

    def lost(self, places: dict[int, int]) -> dict[int, str]:
        """Returns what is lost, by partition, if the records from an offset on are not all kept.

        Args:
          places: for each partition, the offset after the last record that was read, or the partition's first offset.
        """

    def at_time(self, partitions: Sequence[int], seconds: float) -> dict[int, int]:
        """Returns the offset of the first record at or after a time; the latest offset if there is none."""

    def count(self, partition: int, start: int, stop: int, most: int) -> int:
        """Returns the number of records in [start, stop), or `most` if there are more."""

    def after(self, partition: int, start: int, stop: int, count: int) -> int:
        """Returns the offset after the first `count` records from `start` on; `stop` if there are fewer before it."""

    def read(self, ranges: Sequence[Range]) -> Iterator[list[Message]]:
        """Yields the records of the ranges as they come, in order within a partition; [] while none come.

        It ends when all records have come. If the brokers do not answer, it waits for them.

        Raises:
          UserError: a record is no longer kept.
        """

    def watermarks(self) -> dict[int, int]:
        """Returns offsets after the last record, by partition, that `read` has seen; without asking the brokers."""

    def commit(self, offsets: dict[int, int]) -> None:
        """Tells the brokers' tools how far the model is trained; training does not depend on it."""

    def text(self, offset: int) -> str:
        """Returns an offset as the stream's own tools write it."""

    def close(self) -> None:
        """Closes the connections."""


def lost_text(source: StreamSource, partition: int, wanted: int, first: int, lost: int | str) -> str:
    """Returns the message for records that were removed before they were trained."""
    return (
        f"{source.name}, partition {partition}: the next record to train has offset {source.text(wanted)}, and the "
        f"first one that {source.address} still keeps has offset {source.text(first)}, so {lost} records are lost. "
        "To continue without them, set stream_from to the time to begin at, 1970-01-01T00:00:00Z for the first record"
    )


def cut_text(source: StreamSource, partition: int, wanted: int, last: int) -> str:
    """Returns the message for a partition that ends before what was trained."""
    return (
        f"{source.name}, partition {partition}: the checkpoint has read up to offset {source.text(wanted)}, and "
        f"{source.address} has records up to {source.text(last)} only: the stream was created again, or it has lost "
        "records. To train on the records that exist, set stream_from to the time to begin at"
    )


class DeadLetters(Protocol):
    """Takes the records that cannot be trained on."""

    def write(self, letters: Iterable[dict[str, object]]) -> None:
        """Takes descriptions of records: topic, partition, offset, row, reason, value. Does not wait."""

    def flush(self) -> None:
        """Returns once all of them are kept: a checkpoint whose position is after a record needs its description."""

    def close(self) -> None:
        """Ends, once all are kept."""


@dataclasses.dataclass(frozen=True)
class StreamAddress:
    """What a stream's URL says: `kafka://host:port,host:port/topic?dead_letters=other`.

    Attributes:
      scheme: one of `SCHEMES`.
      hosts: `host:port,...`.
      name: the topic, or the key of a Redis stream.
      dead_letters: the topic, or key, to which records go that cannot be trained on; "" for a file.
    """

    scheme: str
    hosts: str
    name: str
    dead_letters: str = ""

    @classmethod
    def parse(cls, url: str) -> "StreamAddress":
        """Parses a URL.

        Raises:
          UserError: it does not name hosts and a stream.
        """
        scheme, _, rest = url.partition("://")
        place, _, query = rest.partition("?")
        hosts, _, name = place.partition("/")
        key, _, dead_letters = query.partition("=")
        if scheme not in SCHEMES or not hosts or not name or "@" in hosts or (query and key != "dead_letters"):
            raise UserError(
                f"the stream {scheme}://{rest.rpartition('@')[2]}: expected kafka://host:port,host:port/TOPIC or "
                "redis://host:port/KEY, optionally with ?dead_letters=TOPIC; write users and passwords into files"
            )
        return cls(scheme, hosts, name, dead_letters)


def is_stream(path: str) -> bool:
    """Whether training data are a stream's URL, and no files."""
    return path.partition("://")[0] in SCHEMES
