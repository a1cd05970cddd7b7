"""Reads streams of Redis or Valkey with the package `redis`.

Each key with a stream is a partition. `redis://host:port/clicks` names the key `clicks` or, if there is no such key,
the keys `clicks:0`, `clicks:1` and so on. If an entry has one field, the field's value is the message. If an entry has
several fields, they are the columns of one example.
"""

import contextlib
import functools
import itertools
import json
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ctr_trainer.live.redis_files import credentials_of, tls_of
from ctr_trainer.live.stream.source import (
    Letters,
    Message,
    Range,
    StreamAddress,
    StreamSource,
    Unavailable,
    cut_text,
    gone_text,
    lost_text,
)
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.messages.errors import UserError

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import parse_url
    from redis.exceptions import ClusterDownError, TryAgainError
    from redis.retry import Retry
except ImportError as missing:
    raise UserError("redis:// needs the package redis: pip install 'ctr_trainer[publish]'") from missing

_SEQUENCES = 64  # Number of bits of the sequence in an offset, which is an ID `milliseconds-sequence` as one integer.
# A replica whose primary is away answers with the third, MASTERDOWN.
_GONE = redis.ConnectionError, redis.TimeoutError, ClusterDownError, TryAgainError
_FIRST_ENTRIES, _ENTRIES, _PAGE_BYTES = 100, 5_000, 16 << 20  # Of a page.
_SECONDS, _RETRY_SECONDS = 10.0, 0.5
_Entry = tuple[bytes, list[bytes]]  # (ID, names and values of the fields in turn).


class RedisSource:
    """Streams of a Redis server; see `StreamSource`. An offset is an entry's ID: milliseconds << 64 | sequence."""

    def __init__(self, address: StreamAddress, files: RedisFiles, group: str) -> None:
        self.name, self.address, self._key = f"redis stream {address.name}", address.hosts, address.name
        self._group, self._client = group, connected(address.scheme, address.hosts, files)
        self._keys: dict[int, str] = {}
        # For each partition: end of the stream at some time -> number of entries that had ever been added.
        self._added: dict[int, dict[int, int]] = {}
        self.has_gaps = False
        self._has_answered, self.trouble = False, ""

    def partitions(self) -> list[int]:
        def ask() -> dict[int, str]:
            if self._client.exists(self._key):
                return {0: self._key}
            numbered = ((number, f"{self._key}:{number}") for number in itertools.count())
            return dict(itertools.takewhile(lambda each: self._client.exists(each[1]), numbered))

        self._keys = self._asked(ask, "the keys")
        if not self._keys:
            raise UserError(
                f"there is neither a stream {self._key!r} nor {self._key + ':0'!r} at {self.address}; create it, or "
                "correct the URL"
            )
        return list(self._keys)

    def identity(self) -> str:
        return ""

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        return self.at_time(partitions, 0.0)

    def latest(self, partitions: Sequence[int], exact: bool = False) -> dict[int, int]:
        return {p: end for p, (_, end, _, _) in self._extents(partitions).items()}

    def lost(self, places: dict[int, int]) -> dict[int, str]:
        texts = {}
        for partition, (first, end, length, added) in self._extents(list(places)).items():
            at, known = places[partition], self._added[partition]
            self._added[partition] = {old: count for old, count in known.items() if old >= at}
            if at > end:
                texts[partition] = cut_text(self, partition, at, end)
            # If all entries that were added since then exist, or if the last read entry exists, none is lost.
            elif 0 < at < first and known.get(at) != added - length and not self.count(partition, at - 1, at, 1):
                texts[partition] = lost_text(self, partition, at, first, "an unknown number of")
        return texts

    def at_time(self, partitions: Sequence[int], seconds: float) -> dict[int, int]:
        last, start = self.latest(partitions), int(seconds * 1000) << _SEQUENCES
        found = {p: self._entries(p, start, last[p], 1) if start < last[p] else [] for p in partitions}
        return {p: _offset(found[p][0][0]) if found[p] else last[p] for p in partitions}

    def count(self, partition: int, start: int, stop: int, most: int) -> int:
        return sum(map(len, self._pages(partition, start, stop, most)))

    def backlog(self, partition: int, start: int, stop: int) -> int:
        first, end, length, _ = self._extents([partition])[partition]
        # As if entries arrived at a constant rate: the server counts none by their IDs.
        return length * max(min(stop, end) - max(start, first), 0) // max(end - first, 1)

    def after(self, partition: int, start: int, stop: int, count: int) -> int:
        found, at = 0, start
        for entries in self._pages(partition, start, stop, count):
            found, at = found + len(entries), _offset(entries[-1][0]) + 1
        return stop if 0 < found < count else at

    def read(self, place: Range) -> Iterator[list[Message]]:
        at = place.start
        while True:
            try:
                for entries in self._pages(place.partition, at, place.stop, sys.maxsize):
                    yield [
                        Message(place.partition, _offset(name), (_offset(name) >> _SEQUENCES) / 1000, _value(fields))
                        for name, fields in entries
                    ]
                    at = _offset(entries[-1][0]) + 1
                return
            except Unavailable as error:
                self.trouble = str(error)
            yield []
            time.sleep(_RETRY_SECONDS)

    def watermarks(self) -> dict[int, int]:
        return {}

    def commit(self, offsets: dict[int, int]) -> None:
        def ask() -> None:
            for partition, offset in offsets.items():
                name = self.text(max(offset - 1, 0))
                try:
                    self._client.xgroup_setid(self._key_of(partition), self._group, name)
                except redis.ResponseError:  # The group does not exist yet.
                    self._client.xgroup_create(self._key_of(partition), self._group, name)

        self._asked(ask, "a commit of positions")

    def text(self, offset: int) -> str:
        return f"{offset >> _SEQUENCES}-{offset & ((1 << _SEQUENCES) - 1)}"

    def close(self) -> None:
        self._client.close()

    def _pages(self, partition: int, start: int, stop: int, most: int) -> Iterator[list[_Entry]]:
        """Yields the first `most` entries in [start, stop), in pages of at most some 16 MiB."""
        page = _FIRST_ENTRIES
        while start < stop and most > 0:
            entries = self._entries(partition, start, stop, min(most, page, _ENTRIES))
            if not entries:
                return
            yield entries
            start, most = _offset(entries[-1][0]) + 1, most - len(entries)
            size = sum(len(text) for _, fields in entries for text in fields)
            page = max(_PAGE_BYTES * len(entries) // max(size, 1), 1)  # Of entries of the same mean size.

    def _entries(self, partition: int, start: int, stop: int, count: int) -> list[_Entry]:
        return self._asked(
            lambda: self._client.xrange(self._key_of(partition), self.text(start), self.text(stop - 1), count),
            f"entries of {self._key_of(partition)}",
        )

    def _key_of(self, partition: int) -> str:
        if partition not in self._keys and partition not in self.partitions():
            raise UserError(gone_text(self, partition))
        return self._keys[partition]

    def _extents(self, partitions: Sequence[int]) -> dict[int, tuple[int, int, int, int]]:
        """Returns, for each partition, (offset of the first entry, end and number of all ever added, number now)."""
        found = {}
        for partition in partitions:
            ask = functools.partial(self._client.xinfo_stream, self._key_of(partition))
            info = self._asked(ask, "the first and last entry")
            end, added = _offset(info["last-generated-id"]) + 1, info.get("entries-added")
            first = _offset(info["first-entry"][0]) if info["first-entry"] else end
            found[partition] = first, end, info["length"], added or 0
            self._added.setdefault(partition, {})
            if added is not None:  # Servers before Redis 7 do not count.
                self._added[partition][end] = added
        return found

    def _asked(self, ask: Callable[[], Any], what: str) -> Any:
        try:
            answer = ask()
        except (*_GONE, OSError) as error:
            text = f"{self.name} at {self.address}, request for {what}: {error}"
            if not self._has_answered and isinstance(error, redis.AuthenticationError):
                raise UserError(
                    f"{text}. Correct the user and the password in the file that redis_auth_file names"
                ) from error
            if not self._has_answered and isinstance(error.__context__, ssl.SSLError):
                raise UserError(f"{text}. Correct the files that redis_ca and redis_cert name") from error
            raise Unavailable(text) from error
        except redis.ResponseError as error:
            raise UserError(f"{self.name} at {self.address}, request for {what}: {error}") from error
        self._has_answered = True
        return answer


def connected(scheme: str, hosts: str, files: RedisFiles) -> Any:
    """Returns a client of the first host, which connects when it is first used."""
    client = redis.Redis(
        **parse_url(f"redis://{hosts.split(',')[0]}"),
        socket_timeout=_SECONDS,
        socket_connect_timeout=_SECONDS,
        retry=Retry(NoBackoff(), 0),  # By default, a request to a server that does not answer takes minutes.
        **credentials_of(files),
        **(tls_of(scheme, files) if scheme == "rediss" else {}),  # Otherwise they are for a publication.
    )
    client.set_response_callback("XRANGE", lambda answer, **_: answer)  # By default, an entry has no field twice.
    return client


def _offset(name: bytes) -> int:
    milliseconds, _, sequence = name.partition(b"-")
    return int(milliseconds) << _SEQUENCES | int(sequence)


def _value(fields: list[bytes]) -> bytes:
    if len(fields) == 2:
        return fields[1]
    # Bytes that are not UTF-8 stay as they are, so that the record is found to be bad.
    texts = [json.dumps(each.decode(errors="surrogateescape"), ensure_ascii=False) for each in fields]
    pairs = ", ".join(f"{name}: {value}" for name, value in zip(texts[::2], texts[1::2], strict=True))
    return f"{{{pairs}}}".encode(errors="surrogateescape")


def source_opener(
    address: StreamAddress, kafka_config: str, files: RedisFiles, group: str
) -> Callable[[], StreamSource]:
    """Implements `opening.opener`."""
    return lambda: RedisSource(address, files, group)


def dead_letters(
    address: StreamAddress, kafka_config: str, files: RedisFiles
) -> Callable[[Letters], tuple[Letters, str]]:
    """Implements `opening.dead_letters`: appends each record to a stream, as JSON in the field `value`."""

    def send(letters: Letters) -> tuple[Letters, str]:
        left = [*letters]
        try:
            with contextlib.closing(connected(address.scheme, address.hosts, files)) as client:
                while left:
                    client.xadd(address.dead_letters, {"value": json.dumps(left[0])})
                    del left[0]
        except (redis.RedisError, OSError) as error:
            return left, str(error)
        return left, ""

    return send
