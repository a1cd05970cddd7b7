"""Opens the stream of a URL, and the file or stream for its bad records."""

import json
import os
import pathlib
from collections.abc import Callable, Iterable

from ctr_trainer.settings.publish_config import RedisFiles
from ctr_trainer.stream.source import DeadLetters, StreamAddress, StreamSource

FILE = "dead_letters.jsonl"


class NoDeadLetters:
    """Drops the records, which are also in the log."""

    def __str__(self) -> str:
        return "the log"

    def write(self, letters: Iterable[dict[str, object]]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class FileDeadLetters:
    """Appends a JSON object per record to a file.

    Args:
      path: path of the file.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path)

    def __str__(self) -> str:
        return str(self._path)

    def write(self, letters: Iterable[dict[str, object]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(letter) + "\n" for letter in letters)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def dead_letters(
    address: StreamAddress, kafka_config: str, redis: RedisFiles, directory: str | None, group: str
) -> DeadLetters:
    """Returns the destination of bad records: the stream in the URL, or a file if there is none or if it fails.

    Args:
      address: the stream.
      kafka_config, redis, group: see `opener`.
      directory: local directory of the file `dead_letters.jsonl`; None for none.
    """
    file = FileDeadLetters(pathlib.Path(directory) / FILE) if directory else NoDeadLetters()
    if not address.dead_letters:
        return file
    if address.scheme == "kafka":
        from ctr_trainer.stream.kafka_client import KafkaDeadLetters, configuration

        return KafkaDeadLetters(address.dead_letters, configuration(address, kafka_config, group), file)
    from ctr_trainer.stream.redis_streams import RedisDeadLetters

    return RedisDeadLetters(address, address.dead_letters, redis, file)


def opener(address: StreamAddress, kafka_config: str, redis: RedisFiles, group: str) -> Callable[[], StreamSource]:
    """Returns a function that opens a stream. Each call opens separate connections, for one thread.

    Args:
      address: the stream.
      kafka_config: file of librdkafka's settings, or "".
      redis: files of the password and the certificates of Redis.
      group: name of the consumer group to which positions are committed, unless `kafka_config` names one.

    Raises:
      UserError: the client library is missing, or the file cannot be read.
    """
    if address.scheme == "kafka":
        from ctr_trainer.stream.kafka_client import (
            configuration,
        )  # Its error explains how to install a missing package.

        settings = configuration(address, kafka_config, group)
        from ctr_trainer.stream.kafka import KafkaSource

        return lambda: KafkaSource(address, settings)
    from ctr_trainer.stream.redis_streams import RedisSource

    return lambda: RedisSource(address, redis, group)
