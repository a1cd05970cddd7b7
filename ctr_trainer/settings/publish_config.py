"""Where a training is published to while it runs."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting

# How the weights of a published row are packed; see `embedding.snapshot.packed_rows`.
DTYPES = ("float32", "float16", "int8")


@dataclasses.dataclass(frozen=True)
class RedisFiles(Settings, title="Redis or Valkey cluster"):
    """Files that a client of a cluster reads; "" where there is no file."""

    redis_auth_file: str = setting(
        "",
        "file whose first line is the cluster's password, USER:PASSWORD, or :PASSWORD if the password has a colon",
        "path",
        alike=False,
    )
    redis_ca: str = setting(
        "", "PEM of the authority that signed the certificates of a rediss:// cluster", "path", alike=False
    )
    redis_cert: str = setting("", "PEM of this client's certificate, if the cluster asks for one", "path", alike=False)
    redis_key: str = setting("", "PEM of the key of this client's certificate", "path", alike=False)


@dataclasses.dataclass(frozen=True)
class PublishConfig(Settings, title="Publishing"):
    """Where a training is published to, and how often; see `docs/serving.md`.

    Attributes:
      to: "" publishes nothing.
      redis: `RedisFiles`.
    """

    to: str = setting(
        "",
        "publish rows and dense tower while training: to a directory or its URL, or to a Redis or Valkey cluster, "
        "redis://host:port,host:port/NAME",
        "URL",
        flag="publish",
    )
    secs: float = setting(
        10.0,
        "time from one published epoch to the next; epochs wait for those that are not delivered yet",
        "seconds",
        minimum=0.1,
        flag="publish_secs",
    )
    dtype: str = setting(
        "float32", "how the weights of a published row are packed", choices=DTYPES, flag="publish_dtype"
    )
    redis: RedisFiles = RedisFiles()
