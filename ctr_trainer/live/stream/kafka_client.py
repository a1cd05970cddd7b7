"""Clients of librdkafka: their settings, their connection errors, and a topic for bad records."""

import functools
import json
from collections.abc import Callable
from typing import Any

from ctr_trainer.live.stream.source import Letters, StreamAddress
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.messages.errors import UserError

try:
    import confluent_kafka
    from confluent_kafka import admin as kafka_admin  # noqa: F401, `kafka` imports both from here.
except ImportError as missing:
    raise UserError("kafka:// needs the package confluent-kafka: pip install 'ctr_trainer[stream]'") from missing

_LETTER_SECONDS = 10.0
_REFUSALS = (
    confluent_kafka.KafkaError._AUTHENTICATION,
    confluent_kafka.KafkaError._SSL,
    confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
)


def configuration(address: StreamAddress, path: str, group: str) -> dict[str, Any]:
    """Returns librdkafka's settings for a consumer.

    Args:
      path: file with a line `name=value` per setting; empty lines and lines that begin with # are ignored. "" for none.
      group: the consumer group, unless the file names one.

    Raises:
      UserError: the file cannot be read, or a line is not a setting or names brokers.
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
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"kafka_config: {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise UserError(f"kafka_config: {path}, line {number}: expected name=value, such as security.protocol=SSL")
        if name.strip() in ("bootstrap.servers", "metadata.broker.list"):
            raise UserError(f"kafka_config: {path}, line {number}: remove {name.strip()}; the URL names the brokers")
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

    `kind`: class of the client. Clients other than a `Consumer` ignore the settings of consumers.

    Raises UserError: librdkafka rejects a setting.
    """
    try:
        return kind(settings | {"error_cb": trouble})
    except confluent_kafka.KafkaException as error:
        raise UserError(f"kafka_config: librdkafka refuses its settings: {error.args[0].str()}") from error


def dead_letters(
    address: StreamAddress, kafka_config: str, redis: RedisFiles
) -> Callable[[Letters], tuple[Letters, str]]:
    """Implements `opening.dead_letters`."""
    trouble = Trouble()
    producer = opened(confluent_kafka.Producer, configuration(address, kafka_config, ""), trouble)

    def send(letters: Letters) -> tuple[Letters, str]:
        left, why = dict(enumerate(letters)), f"no answer within {_LETTER_SECONDS:g} s"

        def delivered(number: int, error: Any) -> None:
            nonlocal why
            if error is None:
                del left[number]
            else:
                why = error.str()

        for number, letter in enumerate(letters):
            value, to = json.dumps(letter).encode(), functools.partial(delivered, number)
            try:
                producer.produce(address.dead_letters, value, on_delivery=lambda error, _, to=to: to(error))
            except (BufferError, confluent_kafka.KafkaException) as error:  # The queue is full, or the record too long.
                why = str(error)
        if producer.flush(_LETTER_SECONDS):
            producer.purge()
        return [*left.values()], trouble.after(why)

    return send
