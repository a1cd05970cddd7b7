"""What a client of a Redis or Valkey cluster shows it, and expects of it."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


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
    redis_cert: str = setting(
        "", "PEM of this client's certificate, where the cluster asks for one", "path", alike=False
    )
    redis_key: str = setting("", "PEM of the key of this client's certificate", "path", alike=False)
