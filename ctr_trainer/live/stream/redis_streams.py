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
_ENTRIES, _SECONDS, _RETRY_SECONDS = 5_000, 10.0, 0.5


class RedisSource:
    """Streams of a Redis server; see `StreamSource`. An offset is an entry's ID: milliseconds << 64 | sequence."""

    def __init__(self, address: StreamAddress, files: RedisFiles, group: str) -> None:
        self.name, self.address, self._key = f"redis stream {address.name}", address.hosts, address.name
        self._group, self._client = group, connected(address.scheme, address.hosts, files)
        self._keys: dict[int, str] = {}
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
        found = self._of_each(partitions, lambda key: self._client.xrange(key, count=1))
        last = self.latest([p for p in partitions if not found[p]])
        return {p: _offset(found[p][0][0]) if found[p] else last[p] for p in partitions}

    def latest(self, partitions: Sequence[int], exact: bool = False) -> dict[int, int]:
        found = self._of_each(partitions, lambda key: self._client.xrevrange(key, count=1))
        return {p: _offset(found[p][0][0]) + 1 if found[p] else 0 for p in partitions}

    def lost(self, places: dict[int, int]) -> dict[int, str]:
        texts = {}
        for partition, (first, end, _) in self._extents(list(places)).items():
            at = places[partition]
            if at > end:
                texts[partition] = cut_text(self, partition, at, end)
            # If the last read entry still exists, no later entry was removed.
            elif 0 < at < first and not self.count(partition, at - 1, at, 1):
                texts[partition] = lost_text(self, partition, at, first, "an unknown number of")
        return texts

    def at_time(self, partitions: Sequence[int], seconds: float) -> dict[int, int]:
        start = int(seconds * 1000) << _SEQUENCES
        return {p: min(start, last) for p, last in self.latest(partitions).items()}

    def count(self, partition: int, start: int, stop: int, most: int) -> int:
        return len(self._entries(partition, start, stop, most)) if start < stop else 0

    def backlog(self, partition: int, start: int, stop: int) -> int:
        first, end, length = self._extents([partition])[partition]
        # As if entries arrived at a constant rate: the server counts none by their IDs.
        return length * max(min(stop, end) - max(start, first), 0) // max(end - first, 1)

    def after(self, partition: int, start: int, stop: int, count: int) -> int:
        entries = self._entries(partition, start, stop, count) if count else []
        if not entries:
            return start
        return stop if len(entries) < count else _offset(entries[-1][0]) + 1

    def read(self, place: Range) -> Iterator[list[Message]]:
        at = place.start
        while at < place.stop:
            try:
                entries = self._entries(place.partition, at, place.stop, _ENTRIES)
            except Unavailable as error:
                self.trouble = str(error)
                yield []
                time.sleep(_RETRY_SECONDS)
                continue
            if not entries:
                return
            yield [
                Message(place.partition, _offset(name), (_offset(name) >> _SEQUENCES) / 1000, _value(fields))
                for name, fields in entries
            ]
            at = _offset(entries[-1][0]) + 1

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

    def _entries(self, partition: int, start: int, stop: int, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return self._asked(
            lambda: self._client.xrange(self._key_of(partition), self.text(start), self.text(stop - 1), count),
            f"entries of {self._key_of(partition)}",
        )

    def _key_of(self, partition: int) -> str:
        if partition not in self._keys:
            self.partitions()
        return self._keys[partition]

    def _extents(self, partitions: Sequence[int]) -> dict[int, tuple[int, int, int]]:
        """Returns, for each partition, (offset of the first entry, end of all that were ever added, number now)."""
        found = {}
        for partition, info in self._of_each(partitions, self._client.xinfo_stream).items():
            end = _offset(info["last-generated-id"]) + 1
            first = _offset(info["first-entry"][0]) if info["first-entry"] else end
            found[partition] = first, end, info["length"]
        return found

    def _of_each(self, partitions: Sequence[int], ask: Callable[[str], Any]) -> dict[int, Any]:
        return {p: self._asked(functools.partial(ask, self._key_of(p)), "the first or last entry") for p in partitions}

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
    return redis.Redis(
        **parse_url(f"redis://{hosts.split(',')[0]}"),
        socket_timeout=_SECONDS,
        socket_connect_timeout=_SECONDS,
        retry=Retry(NoBackoff(), 0),  # By default, a request to a server that does not answer takes minutes.
        **credentials_of(files),
        **(tls_of(scheme, files) if scheme == "rediss" else {}),  # Otherwise they are for a publication.
    )


def _offset(name: bytes) -> int:
    milliseconds, _, sequence = name.partition(b"-")
    return int(milliseconds) << _SEQUENCES | int(sequence)


def _value(fields: dict[bytes, bytes]) -> bytes:
    if len(fields) == 1:
        return next(iter(fields.values()))
    # Bytes that are not UTF-8 stay as they are, so that the record is found to be bad.
    texts = {n.decode(errors="surrogateescape"): v.decode(errors="surrogateescape") for n, v in fields.items()}
    return json.dumps(texts, ensure_ascii=False).encode(errors="surrogateescape")


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
