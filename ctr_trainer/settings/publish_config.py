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
        "file whose first line is the password of the cluster, USER:PASSWORD, or :PASSWORD if the password contains a "
        "colon",
        "path",
        alike=False,
    )
    redis_ca: str = setting(
        "", "PEM file of the authority that signed the certificates of a rediss:// cluster", "path", alike=False
    )
    redis_cert: str = setting(
        "", "PEM file of the certificate of this client, if the cluster requires one", "path", alike=False
    )
    redis_key: str = setting("", "PEM file of the key of --redis_cert", "path", alike=False)


@dataclasses.dataclass(frozen=True)
class PublishConfig(Settings, title="Publishing"):
    """Where a training is published to, and how often; see `docs/serving.md`.

    Attributes:
      to: "" publishes nothing.
      redis: `RedisFiles`.
    """

    to: str = setting(
        "",
        "where to publish rows and dense tower while training: a directory, its URL, or a Redis or Valkey cluster as "
        "redis://host:port,host:port/NAME; none publishes nothing",
        "URL",
        flag="publish",
    )
    secs: float = setting(
        10.0,
        "time between two publications of changed rows; a publication waits until the previous ones are delivered",
        "seconds",
        minimum=0.1,
        flag="publish_secs",
    )
    dtype: str = setting(
        "float32",
        "type of the weights in published rows; smaller types make smaller, less exact publications",
        choices=DTYPES,
        flag="publish_dtype",
    )
    redis: RedisFiles = RedisFiles()
