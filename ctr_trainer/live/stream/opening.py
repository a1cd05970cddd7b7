"""Opens the stream that a URL names, and the stream of its bad records."""

import importlib
import os
from collections.abc import Callable

from ctr_trainer.data.input_schemes import STREAMS
from ctr_trainer.live.stream.source import DeadLetters, StreamAddress, StreamSource
from ctr_trainer.settings.training_configs import RedisFiles

_FILE = "dead_letters.jsonl"


def opener(address: StreamAddress, kafka_config: str, redis: RedisFiles, group: str) -> Callable[[], StreamSource]:
    """Returns a function that opens a stream. Each call opens separate connections, for one thread.

    `group`: the consumer group to which positions are committed, unless the file `kafka_config` names one.

    Raises UserError: the client library is missing, or the file cannot be read.
    """
    return importlib.import_module(STREAMS[address.scheme]).source_opener(address, kafka_config, redis, group)


def dead_letters(address: StreamAddress, kafka_config: str, redis: RedisFiles, directory: str | None) -> DeadLetters:
    """Returns the destination of bad records: the stream that the URL names for them, or else a local file."""
    file = os.path.join(directory, _FILE) if directory else None
    if not address.dead_letters:
        return DeadLetters(file)
    send = importlib.import_module(STREAMS[address.scheme]).dead_letters(address, kafka_config, redis)
    return DeadLetters(file, address.dead_letters, send)
