"""Flags of `score`."""

import dataclasses

from ctr_trainer.flags.serve import ServeFlags
from ctr_trainer.settings.redis_files import RedisFiles
from ctr_trainer.settings.score_limits import ScoreLimits
from ctr_trainer.settings.setting import Settings, same_as, setting


@dataclasses.dataclass(frozen=True)
class ScoreFlags(Settings, title="Score"):
    """Score."""

    model: str = setting(
        "",
        "publication that is served: a directory, its URL, or redis://host:port,host:port/NAME of a cluster",
        "path",
    )
    name: str = setting("", "name of the model in the server's URLs; none takes the name that it was published by")
    bind: str = setting("127.0.0.1", "address to listen on; off loopback the server needs a --token_file", "address")
    port: int = setting(8080, "port of HTTP; 0 picks one", "port", minimum=0, maximum=65535)
    flight_port: int = setting(
        -1, "port of Arrow Flight, for batches; 0 picks one, -1 is none", "port", minimum=-1, maximum=65535
    )
    refresh_secs: float = setting(1.0, "time between two looks for a newer record", "seconds", above=0.0)
    start_timeout: float = setting(
        60.0, "how long a publication that is not there yet is waited for at the start", "seconds", minimum=0.0
    )
    max_age_secs: float = setting(
        0.0, "age of the served rows beyond which /healthz says 503; 0 is any age", "seconds", minimum=0.0
    )
    stop_secs: float = setting(
        10.0, "how long requests under way may take to end after SIGTERM", "seconds", minimum=0.0
    )
    cache_dir: str = setting("", "local directory for rows and towers; none takes that of temporary files", "path")
    cache_rows: int = setting(
        100_000, "rows of each table that are kept for the next batches, of a cluster's rows; 0 for none", minimum=0
    )
    cache_secs: float = setting(1.0, "for how long such a row is given", "seconds", minimum=0.0)
    token_file: str = same_as(ServeFlags, "token_file")
    tls_cert: str = same_as(ServeFlags, "tls_cert")
    tls_key: str = same_as(ServeFlags, "tls_key")
    tls_client_ca: str = same_as(ServeFlags, "tls_client_ca")
    port_file: str = same_as(ServeFlags, "port_file")
    log_format: str = same_as(ServeFlags, "log_format")
    limits: ScoreLimits = ScoreLimits()
    redis: RedisFiles = RedisFiles()
