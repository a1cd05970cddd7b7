"""Reads a Kafka topic with `confluent-kafka` (librdkafka)."""

import collections
import concurrent.futures
import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Its error explains how to install a missing package.
from ctr_trainer.live.stream.kafka_client import (
    Trouble,
    configuration,
    confluent_kafka,
    dead_letters,  # noqa: F401, of this scheme of streams.
    kafka_admin,
    opened,
)
from ctr_trainer.live.stream.source import (
    Message,
    Range,
    StreamAddress,
    StreamSource,
    Unavailable,
    cut_text,
    lost_text,
    uncollected,
)
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.messages.errors import UserError

_ASK_SECONDS, _READ_SECONDS = 5.0, 0.1
_UNKNOWN_SECONDS = 30.0  # For a moment, a broker that restarts may not know its topics.
_MOST = 10_000  # Largest number of messages per call.
# Largest number of messages of one partition, and of bytes of all partitions, that are kept for later ranges.
_MOST_KEPT, _MOST_KEPT_BYTES = 50_000, 64 << 20
_GAP = 20_000  # A gap of at most this many records is read and dropped; over a longer gap, the consumer seeks.
_LOST = (confluent_kafka.KafkaError._AUTO_OFFSET_RESET, confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE)
_UNKNOWN = (confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, confluent_kafka.KafkaError._UNKNOWN_TOPIC)
# A repeated fetch gives these errors again, or skips records.
_PERMANENT = (
    confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE,
    confluent_kafka.KafkaError._BAD_MSG,
    confluent_kafka.KafkaError._BAD_COMPRESSION,
    confluent_kafka.KafkaError._NOT_IMPLEMENTED,
)


class KafkaSource:
    """A Kafka topic; see `StreamSource`."""

    def __init__(self, address: StreamAddress, settings: dict[str, Any]) -> None:
        self.name, self.address, self._topic = f"kafka topic {address.name}", address.hosts, address.name
        self._settings, self._trouble = settings, Trouble()
        self._unknown_since: float | None = -math.inf  # The time since when the brokers do not know the topic.
        self._has_answered, self.has_gaps = False, True  # Markers of transactions, and what compaction removes.
        # By partition: the offset after the last received record, and the offset before which no record is needed.
        self._next: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._assigned: set[int] = set()
        self._kept: dict[int, collections.deque[Message]] = {}  # Records of later ranges, by partition.
        self._kept_bytes: dict[int, int] = {}

    @property
    def trouble(self) -> str:
        return self._trouble.text

    def partitions(self) -> list[int]:
        def ask() -> list[int]:
            found = self._admin.list_topics(self._topic, timeout=_ASK_SECONDS).topics[self._topic]
            if found.error is not None:
                raise confluent_kafka.KafkaException(found.error)
            return sorted(found.partitions)

        return self._asked(ask, "the partitions")

    def identity(self) -> str:
        with contextlib.suppress(confluent_kafka.KafkaException, TimeoutError):
            known = self._admin.list_topics(self._topic, timeout=_ASK_SECONDS)
            if known.controller_id in known.brokers:  # Otherwise the request below waits for a controller.
                topics = confluent_kafka.TopicCollection([self._topic])
                asked = self._admin.describe_topics(topics, request_timeout=_ASK_SECONDS)
                found = asked[self._topic].result().topic_id
                if found.get_most_significant_bits() or found.get_least_significant_bits():
                    return str(found)
        return ""

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        return self._offsets(partitions, kafka_admin.OffsetSpec.earliest())

    def latest(self, partitions: Sequence[int], exact: bool = False) -> dict[int, int]:
        found = self._offsets(partitions, kafka_admin.OffsetSpec.latest())
        ends = self._ends(found) if exact else {}
        return {p: max(end, ends.get(p, 0)) for p, end in found.items()}

    def lost(self, places: dict[int, int]) -> dict[int, str]:
        first, last = self.earliest(list(places)), self.latest(list(places))
        texts = {p: lost_text(self, p, at, first[p], first[p] - at) for p, at in places.items() if at < first[p]}
        # The latest offset in a broker's answer may lag behind its records; a fetch reports the true end.
        beyond = {p: at for p, at in places.items() if at > last[p]}
        ends = self._ends(beyond)
        if len(ends) < len(beyond):
            last = self.latest(list(places))  # Lost brokers, and some brokers beyond the end, do not answer a fetch.
        cut = {p: max(ends.get(p, 0), last[p]) for p, at in beyond.items() if max(ends.get(p, 0), last[p]) < at}
        return texts | {p: cut_text(self, p, places[p], end) for p, end in cut.items()}

    def at_time(self, partitions: Sequence[int], seconds: float) -> dict[int, int]:
        found = self._offsets(partitions, kafka_admin.OffsetSpec.for_timestamp(int(seconds * 1000)))
        later = [partition for partition, offset in found.items() if offset < 0]
        return found | (self.latest(later, exact=True) if later else {})

    def count(self, partition: int, start: int, stop: int, most: int) -> int:
        return min(max(stop - start, 0), most)

    def backlog(self, partition: int, start: int, stop: int) -> int:
        return max(stop - start, 0)

    def after(self, partition: int, start: int, stop: int, count: int) -> int:
        return min(start + count, stop)

    def read(self, place: Range) -> Iterator[list[Message]]:
        partition = place.partition
        self._go_to(partition, place.start)
        kept = self._kept[partition]
        yield [self._take_kept(partition) for _ in range(sum(message.offset < place.stop for message in kept))]
        while self._next[partition] < place.stop:
            self._assign(partition)
            yield self._poll(place)
        self._taken[partition] = place.stop

    def watermarks(self) -> dict[int, int]:
        found = {}
        for partition in self._assigned:
            place = confluent_kafka.TopicPartition(self._topic, partition)
            _, high = self._consumer.get_watermark_offsets(place, cached=True)
            if high >= 0:
                found[partition] = high
        return found

    def commit(self, offsets: dict[int, int]) -> None:
        places = [confluent_kafka.TopicPartition(self._topic, p, offset) for p, offset in offsets.items()]
        self._asked(lambda: self._consumer.commit(offsets=places, asynchronous=False), "a commit of positions")

    def text(self, offset: int) -> str:
        return str(offset)

    def close(self) -> None:
        if "_consumer" in vars(self):
            self._consumer.close()

    def _ends(self, places: dict[int, int]) -> dict[int, int]:
        """Returns the end of each partition that answers a fetch from its offset in time; 0 if that is out of range."""
        ends: dict[int, int] = {}
        if not places:
            return ends
        with contextlib.closing(opened(confluent_kafka.Consumer, self._settings, self._trouble)) as consumer:
            consumer.assign([confluent_kafka.TopicPartition(self._topic, p, offset) for p, offset in places.items()])
            deadline = time.monotonic() + _ASK_SECONDS
            while len(ends) < len(places) and time.monotonic() < deadline:
                # `consume` waits for the requested number of messages. Each partition sends one message, its end.
                for message in consumer.consume(len(places) - len(ends), _READ_SECONDS):
                    error = message.error()
                    if error is not None and error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        ends[message.partition()] = message.offset()
                    elif error is not None and error.code() in _LOST:
                        ends[message.partition()] = 0
        return ends

    def _poll(self, place: Range) -> list[Message]:
        """Returns the next received records of a range, and keeps records for later ranges."""
        taken = []
        with uncollected():
            # The first call waits for a message; the second call takes the other available messages.
            messages = self._consumer.consume(1, _READ_SECONDS)
            for message in [*messages, *(self._consumer.consume(_MOST, 0) if messages else [])]:
                partition, offset, error = message.partition(), message.offset(), message.error()
                if error is not None:
                    self._note(error, partition, offset)
                elif partition in self._assigned and offset >= self._next[partition]:
                    self._next[partition] = offset + 1
                    if offset < self._taken[partition]:
                        continue
                    record = Message(partition, offset, message.timestamp()[1] / 1000, message.value())
                    if partition == place.partition and offset < place.stop:
                        taken.append(record)
                    else:
                        self._kept[partition].append(record)
                        self._kept_bytes[partition] += len(record.value or b"")
        is_full, share = sum(self._kept_bytes.values()) > _MOST_KEPT_BYTES, _MOST_KEPT_BYTES // max(len(self._kept), 1)
        for partition in [*self._assigned]:
            if len(self._kept[partition]) > _MOST_KEPT or (is_full and self._kept_bytes[partition] > share):
                self._unassign(partition)  # It is assigned again after the kept records are used.
        return taken

    def _take_kept(self, partition: int) -> Message:
        message = self._kept[partition].popleft()
        self._kept_bytes[partition] -= len(message.value or b"")
        return message

    def _note(self, error: Any, partition: int, offset: int) -> None:
        if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            # The end may also follow transaction markers, or records that compaction removed.
            self._next[partition] = max(self._next.get(partition, 0), offset)
            return
        at = self._next.get(partition, offset)
        if error.code() in _LOST:
            self._unassign(partition)  # If the offset exists, only a replica lags behind: `read` tries again.
            try:
                first, end = (each([partition])[partition] for each in (self.earliest, self.latest))
            except Unavailable as unavailable:
                self._trouble.text = str(unavailable)
                return
            if at < first:
                raise UserError(lost_text(self, partition, at, first, first - at))
            if end < at:
                raise UserError(cut_text(self, partition, at, end))
        self._trouble.text = f"partition {partition}, offset {at}: {error.str()}"
        if error.fatal() or error.code() in _PERMANENT:
            raise UserError(
                f"{self.name} at {self.address}, {self._trouble.text}. Correct the cause, or set stream_from to a time "
                "after this record"
            )

    def _go_to(self, partition: int, start: int) -> None:
        """Continues a partition at `start`."""
        here = self._next.get(partition)
        if here is None or start < self._taken[partition] or start > here + _GAP:
            self._unassign(partition)
            self._kept[partition], self._kept_bytes[partition] = collections.deque(), 0
            self._next[partition] = start
        self._taken[partition] = start
        while self._kept[partition] and self._kept[partition][0].offset < start:
            self._take_kept(partition)

    def _assign(self, partition: int) -> None:
        if partition not in self._assigned:
            place = confluent_kafka.TopicPartition(self._topic, partition, self._next[partition])
            self._consumer.incremental_assign([place])
            self._assigned.add(partition)

    def _unassign(self, partition: int) -> None:
        if partition in self._assigned:
            self._consumer.incremental_unassign([confluent_kafka.TopicPartition(self._topic, partition)])
            self._assigned.remove(partition)

    @functools.cached_property
    def _consumer(self) -> Any:
        return opened(confluent_kafka.Consumer, self._settings, self._trouble)

    @functools.cached_property
    def _admin(self) -> Any:
        return opened(kafka_admin.AdminClient, self._settings, self._trouble)

    def _offsets(self, partitions: Sequence[int], of: Any) -> dict[int, int]:
        def ask() -> dict[int, int]:
            places = {confluent_kafka.TopicPartition(self._topic, partition): of for partition in partitions}
            asked = self._admin.list_offsets(places, request_timeout=_ASK_SECONDS)
            return {place.partition: found.result(_ASK_SECONDS).offset for place, found in asked.items()}

        return self._asked(ask, "offsets")

    def _asked(self, ask: Callable[[], Any], what: str) -> Any:
        try:
            answer = ask()
        except (confluent_kafka.KafkaException, TimeoutError, concurrent.futures.TimeoutError) as error:
            self._admin.poll(0)  # The client reports errors only when it is polled.
            found = error.args[0] if isinstance(error, confluent_kafka.KafkaException) else None
            reason, code = (found.str(), found.code()) if found else ("no answer", None)
            text = self._trouble.after(f"{self.name} at {self.address}, request for {what}: {reason}")
            is_lasting = code in _PERMANENT
            if code in _UNKNOWN:
                text = f"there is no topic {self._topic!r} at {self.address}; create it, or correct the URL"
                self._unknown_since = time.monotonic() if self._unknown_since is None else self._unknown_since
                is_lasting = time.monotonic() - self._unknown_since > _UNKNOWN_SECONDS
            if is_lasting:
                raise UserError(text) from error
            if self._trouble.is_refusal and not self._has_answered:
                raise UserError(f"{text}. Correct the security settings in the file that kafka_config names") from error
            raise Unavailable(text) from error
        self._has_answered, self._trouble.text, self._trouble.is_refusal = True, "", False
        self._unknown_since = None
        return answer


def source_opener(
    address: StreamAddress, kafka_config: str, redis: RedisFiles, group: str
) -> Callable[[], StreamSource]:
    """Implements `opening.opener`."""
    settings = configuration(address, kafka_config, group)
    return lambda: KafkaSource(address, settings)
