"""Clients of librdkafka: their settings, their connection errors, and a topic for bad records."""

import json
import logging
from collections.abc import Iterable
from typing import Any

from ctr_trainer.live.stream.source import DeadLetters, StreamAddress
from ctr_trainer.system.messages.errors import UserError

try:
    import confluent_kafka
    from confluent_kafka import admin as kafka_admin  # noqa: F401, `kafka` imports both from here.
except ImportError as missing:
    raise UserError("kafka:// needs the package confluent-kafka: pip install 'ctr_trainer[stream]'") from missing

_log = logging.getLogger(__name__)
_LETTER_SECONDS = 30.0
_REFUSALS = (
    confluent_kafka.KafkaError._AUTHENTICATION,
    confluent_kafka.KafkaError._SSL,
    confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
)

_OF_CONSUMERS = (
    *("group.id", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset", "isolation.level"),
    *("queued.min.messages", "queued.max.messages.kbytes", "fetch.wait.max.ms", "fetch.message.max.bytes"),
    *("fetch.max.bytes", "fetch.queue.backoff.ms"),
)


def configuration(address: StreamAddress, path: str, group: str) -> dict[str, Any]:
    """Returns librdkafka's settings for a consumer.

    Args:
      path: file with a line `name=value` per setting; empty lines and lines that begin with # are ignored. "" for none.
      group: the consumer group, unless the file names one.

    Raises:
      UserError: the file cannot be read, or a line is not a setting.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": address.hosts,
        "group.id": group,
        "log_level": 2,  # This package itself logs when it waits for brokers.
        # With librdkafka's default, 1 MB per partition and request, reading a backlog takes three times as long.
        "fetch.message.max.bytes": 8 << 20,
        "fetch.max.bytes": 64 << 20,
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": 64 << 10,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 20,  # By default, a full queue is not refilled for a second, and becomes empty.
    }
    try:
        lines = open(path, encoding="utf-8").read().splitlines() if path else []
    except OSError as error:
        raise UserError(f"kafka_config: {path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise UserError(f"kafka_config: {path}, line {number}: expected name=value, such as security.protocol=SSL")
        settings[name.strip()] = value.strip()
    # The positions in checkpoints depend on these settings, so users may not change them.
    return settings | {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error"}


class Trouble:
    """The last connection error of a librdkafka client; pass it as the client's `error_cb`.

    Attributes:
      text: why the brokers do not answer; "" without an error.
      is_refusal: whether a broker rejected the client's user or certificate, or the client rejected the broker's.
    """

    def __init__(self) -> None:
        self.text, self.is_refusal = "", False

    def __call__(self, error: Any) -> None:
        if error.code() != confluent_kafka.KafkaError._ALL_BROKERS_DOWN:  # This error gives no reason.
            self.text, self.is_refusal = error.str(), error.code() in _REFUSALS

    def after(self, text: str) -> str:
        """Returns a text, followed by the reason if there is one."""
        return f"{text}: {self.text}" if self.text else text


def opened(kind: Any, settings: dict[str, Any], trouble: Trouble) -> Any:
    """Returns a client.

    Args:
      kind: class of the client; only a `Consumer` receives the settings of consumers.

    Raises:
      UserError: librdkafka rejects a setting.
    """
    if kind is not confluent_kafka.Consumer:
        settings = {name: value for name, value in settings.items() if name not in _OF_CONSUMERS}
    try:
        return kind(settings | {"error_cb": trouble})
    except confluent_kafka.KafkaException as error:
        raise UserError(f"kafka_config: librdkafka refuses its settings: {error.args[0].str()}") from error


class KafkaDeadLetters(DeadLetters):
    """Sends records that cannot be trained on to a topic. Records that do not reach the topic go to `otherwise`."""

    def __init__(self, topic: str, settings: dict[str, Any], otherwise: DeadLetters) -> None:
        self._topic, self._otherwise, self._trouble = topic, otherwise, Trouble()
        self._producer = opened(confluent_kafka.Producer, settings, self._trouble)
        self._sent = 0
        self._open: dict[int, dict[str, object]] = {}  # Letters that the brokers have not acknowledged.

    def write(self, letters: Iterable[dict[str, object]]) -> None:
        for letter in letters:
            self._sent += 1
            number, self._open[self._sent] = self._sent, letter
            try:
                self._producer.produce(
                    self._topic,
                    json.dumps(letter).encode(),
                    on_delivery=lambda error, message, number=number: self._delivered(number, error),
                )
            except BufferError:  # The queue of the producer is full, because the brokers do not answer.
                self._keep_otherwise([number], "its queue is full")
        self._producer.poll(0)

    def flush(self) -> None:
        if self._open and self._producer.flush(_LETTER_SECONDS):
            self._keep_otherwise([*self._open], f"no answer within {_LETTER_SECONDS:g} s")

    def close(self) -> None:
        self.flush()

    def _delivered(self, number: int, error: Any) -> None:
        if error is None:
            self._open.pop(number, None)
        else:
            self._keep_otherwise([number], error.str())

    def _keep_otherwise(self, numbers: Iterable[int], why: str) -> None:
        letters = [letter for number in numbers if (letter := self._open.pop(number, None)) is not None]
        if letters:
            self._otherwise.write(letters)
            _log.error(
                "%d bad records did not reach the topic %s and are kept in %s: %s",
                *(len(letters), self._topic, self._otherwise, self._trouble.after(why)),
            )
