"""Settings of a training's evaluations, publication and streams."""

import dataclasses
import datetime
from collections.abc import Iterator

from ctr_trainer.settings.setting import Settings, setting

# How the weights of a published row are packed; see `embedding.snapshot.packed_rows`.
DTYPES = ("float32", "float16", "int8")
GRACE_SECONDS = 600.0  # How long readers may read what a newer publication replaces.
FROM, UNTIL = ("checkpoint", "earliest", "latest"), ("latest",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings, title="Evaluation"):
    """When a training is evaluated, and how it uses the results; `EvalSpec` adds the data."""

    every_n_steps: int | None = setting(
        None,
        "steps between two evaluations on --eval_data; 0 evaluates at the end only",
        "steps",
        minimum=0,
        flag="eval_steps",
    )
    every_n_epochs: int = setting(
        0,
        "epochs between two evaluations on --eval_data, in place of --eval_steps; 0 for --eval_steps",
        "epochs",
        minimum=0,
        flag="eval_epochs",
    )
    steps: int | None = setting(
        0, "batches per worker in an evaluation while training; 0 takes all", "batches", minimum=0, flag=None
    )
    best_metric: str | None = setting(
        "",
        "metric that selects the best checkpoint, which is kept: auc, logloss, gauc or, of one label, auc/click; empty "
        "keeps none",
    )
    best_direction: str | None = setting(
        "",
        "whether larger (max) or smaller (min) values of --best_metric are better; needed for a metric of your own",
        choices=("max", "min"),
        flag=None,
    )
    early_stopping_patience: int = setting(
        0,
        "number of evaluations without an improvement of --best_metric after which training ends; 0 has no such limit",
        "times",
        minimum=0,
    )
    early_stopping_min_delta: float = setting(
        0.0, "smallest change of --best_metric that counts as an improvement", minimum=0.0, flag=None
    )

    group_by: str = setting(
        "",
        "id column or single-valued feature, such as user; adds the AUC within the examples of each of its values "
        "(gauc)",
        "column",
    )

    def conflicts(self) -> Iterator[str]:
        if self.every_n_steps and self.every_n_epochs:
            yield "{every_n_steps} and {every_n_epochs} exclude each other: leave out one of the two"

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations during training, not only at its end."""
        return bool(self.every_n_steps or self.every_n_epochs)


@dataclasses.dataclass(frozen=True)
class RedisFiles(Settings, title="Redis or Valkey cluster"):
    """Files that a client of a cluster reads; "" for no file."""

    redis_auth_file: str = setting(
        "",
        "file whose first line is the password of the cluster, USER:PASSWORD, or :PASSWORD if the password contains a "
        "colon",
        "path",
        alike=False,
    )
    redis_ca: str = setting(
        "", "PEM file of the authority that signed the certificates of a rediss:// cluster", "path", alike=False
    )
    redis_cert: str = setting(
        "", "PEM file of this client's certificate and key, if the cluster requires them", "path", alike=False
    )


@dataclasses.dataclass(frozen=True)
class PublishConfig(Settings, title="Publishing"):
    """Where and how often a training publishes; see `docs/serving.md`.

    Attributes:
      to: "" publishes nothing.
      redis: `RedisFiles`.
    """

    to: str = setting(
        "",
        "where to publish rows and dense tower while training: a directory, its URL, or a Redis or Valkey cluster as "
        "redis://host:port,host:port/NAME; empty: nowhere",
        "URL",
        flag="publish",
    )
    secs: float = setting(
        2.0,
        "least time between two publications of changed rows; the next one begins when the previous one is delivered. "
        "While the training hardly waits for input, they are written in at most a twentieth of its time",
        "seconds",
        minimum=0.01,
        flag="publish_secs",
    )
    dtype: str = setting(
        "auto",
        "type of the weights in published rows; smaller types make smaller, less exact publications. auto is int8 for "
        "rows of row_dtype=int8, which loses nothing, and else float32",
        choices=("auto", *DTYPES),
        flag="publish_dtype",
    )
    change_inputs: bool = setting(
        False, "replace a published model by one with other inputs, to which its clients have to adapt"
    )
    redis: RedisFiles = RedisFiles()


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
        "where to end in a stream. latest: at the record that is the newest when training starts; or a time; "
        "empty: without end",
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
        "port at which Prometheus reads /metrics without a token, on the host of `bind` or, of a training, on all "
        "addresses; 0 picks a free port, -1 serves no metrics",
        "port",
        minimum=-1,
        maximum=65535,
        alike=False,
    )

    def conflicts(self) -> Iterator[str]:
        for name, value, words in (("start", self.start, FROM), ("until", self.until, ("", *UNTIL))):
            if value not in words and seconds_of(value) is None:
                known = ", ".join(word for word in words if word)
                yield f"{{{name}}}: expected {known} or a time, as 2026-11-23T10:00:00Z"


def seconds_of(text: str) -> float | None:
    """Returns a time in seconds since 1970 (UTC if it has no zone), or None if the text is not a time."""
    try:
        found = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.timezone.utc)).timestamp()
