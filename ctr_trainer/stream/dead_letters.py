"""Where the records of a stream go that cannot be trained on: a file, or a stream of its own."""

import json
import os
import pathlib
from collections.abc import Iterable

from ctr_trainer.settings.publish_config import RedisFiles
from ctr_trainer.stream.source import DeadLetters, StreamAddress

FILE = "dead_letters.jsonl"


class NoDeadLetters:
    """Keeps nothing: the log names each record."""

    def write(self, letters: Iterable[dict[str, object]]) -> None:
        pass

    def close(self) -> None:
        pass


class FileDeadLetters:
    """Appends a JSON object per record to a file.

    Args:
      path: of the file.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path)

    def write(self, letters: Iterable[dict[str, object]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(letter) + "\n" for letter in letters)

    def close(self) -> None:
        pass


def dead_letters(
    address: StreamAddress, kafka_config: str, redis: RedisFiles, directory: str | None, group: str
) -> DeadLetters:
    """Returns where bad records go: to the stream that the URL names, else to a file.

    Args:
      address: the stream.
      kafka_config, redis, group: see `source.opener`.
      directory: local directory of the file `dead_letters.jsonl`; None for none.
    """
    if not address.dead_letters:
        return FileDeadLetters(pathlib.Path(directory) / FILE) if directory else NoDeadLetters()
    if address.scheme == "kafka":
        from ctr_trainer.stream.kafka import KafkaDeadLetters, configuration

        return KafkaDeadLetters(address.dead_letters, configuration(address, kafka_config, group))
    from ctr_trainer.stream.redis_streams import RedisDeadLetters

    return RedisDeadLetters(address, address.dead_letters, redis)
