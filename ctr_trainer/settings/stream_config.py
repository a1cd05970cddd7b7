"""How a training reads a stream."""

import dataclasses
import datetime

from ctr_trainer.settings.setting import Settings, setting

FROM, UNTIL = ("checkpoint", "earliest", "latest"), ("latest",)


@dataclasses.dataclass(frozen=True)
class StreamConfig(Settings, title="Stream"):
    """How a training reads a stream; see `docs/streaming.md`."""

    start: str = setting(
        "checkpoint",
        "where to begin in a stream. checkpoint: at the position in the checkpoint, or at the earliest record without "
        "one; earliest; latest; or a time such as 2026-11-23T10:00:00Z. A run with the value of the previous run "
        "resumes from its checkpoint",
        "time",
        flag="stream_from",
    )
    until: str = setting(
        "",
        "where to end in a stream. latest: at the record that is the newest when training starts; or a time; none "
        "trains without end",
        "time",
        flag="stream_until",
    )
    wait_secs: float = setting(
        1.0,
        "longest time that a record waits until its batch is full; then the batch is trained as it is",
        "seconds",
        minimum=0.0,
        maximum=60.0,
        flag="stream_wait_secs",
    )
    max_bad_rows: int = setting(
        0,
        "number of unreadable rows that are left out and logged; one more ends the command with an error",
        "rows",
        minimum=0,
    )
    kafka_config: str = setting(
        "",
        "file of librdkafka settings, one name=value per line, such as security.protocol=SASL_SSL or group.id=ctr",
        "path",
        alike=False,
    )
    metrics_port: int = setting(
        -1,
        "port at which Prometheus reads /metrics; 0 picks a free port, -1 serves no metrics",
        "port",
        minimum=-1,
        maximum=65535,
        alike=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, words in (("start", self.start, FROM), ("until", self.until, ("", *UNTIL))):
            if value not in words and seconds_of(value) is None:
                known = ", ".join(word for word in words if word)
                raise self.refused(f"{{{name}}}: expected {known} or a time, as 2026-11-23T10:00:00Z")


def seconds_of(text: str) -> float | None:
    """Returns a time in seconds since 1970; without a zone it is UTC. None if the text is not a time."""
    try:
        found = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.timezone.utc)).timestamp()
