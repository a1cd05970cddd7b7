"""The schemes of the URLs of streams, and the modules that read them, which are imported only for such a URL."""

# A module has the functions `source_opener` and `dead_letters`, see `live.stream.opening`.
STREAMS = {
    "kafka": "ctr_trainer.live.stream.kafka",
    "redis": "ctr_trainer.live.stream.redis_streams",
    "rediss": "ctr_trainer.live.stream.redis_streams",
}


def is_stream(path: str) -> bool:
    """Whether the training data is the URL of a stream."""
    return path.partition("://")[0] in STREAMS
