"""Flags of the commands that supervise trainings, run or query servers, or use a trained model."""

import dataclasses

from ctr_trainer.settings.embedding_config import DiskSettings, SecurityFiles
from ctr_trainer.settings.setting import Settings, same_as, setting
from ctr_trainer.settings.training_configs import RedisFiles, StreamConfig
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class LaunchFlags(Settings, title="Launch"):
    np: int = setting(1, "number of workers to start with", "workers", minimum=1)
    min_np: int = setting(0, "fewest workers to continue with after a loss; 0 for --np", "workers", minimum=0)
    max_np: int = setting(0, "most workers to continue with if slots are added; 0 for --np", "workers", minimum=0)
    hosts: str = setting(
        "", "hosts and their numbers of slots, such as a:4,b:4, this host first; this host alone if not given"
    )
    hostfile: str = setting("", "file of the hosts, one NAME slots=NUMBER per line", "path")
    host_discovery_script: str = setting(
        "", "command that prints the available hosts, one NAME or NAME:SLOTS per line; it is run every second"
    )
    network_interface: str = setting("", "network interface by which the workers of several hosts connect", "name")
    ssh_port: int = setting(
        0, "port of ssh on all hosts; 0 takes the port of the ssh settings", minimum=0, maximum=65535
    )
    start_timeout: int = setting(30, "longest time for horovodrun to reach all hosts", "seconds", minimum=1)
    elastic_timeout: float = setting(
        600.0, "longest wait until the hosts have enough slots; after it the launcher gives up", "seconds", minimum=1.0
    )
    max_restarts: int = setting(
        5,
        "number of restarts without a new checkpoint between them after which the launcher gives up",
        "restarts",
        minimum=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fewest <= self.np <= self.most:
            raise UserError(
                f"--min-np={self.fewest}, -np {self.np}, --max-np={self.most}: expected these in ascending order"
            )
        given = [f"--{name}" for name in ("hosts", "hostfile", "host_discovery_script") if getattr(self, name)]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} exclude each other: each says which hosts there are")

    @property
    def fewest(self) -> int:
        return self.min_np or self.np

    @property
    def most(self) -> int:
        return self.max_np or self.np


@dataclasses.dataclass(frozen=True)
class ServeFlags(Settings, title="Serve"):
    bind: str = setting("127.0.0.1:0", "address to listen on, as host:port; port 0 picks a free port", "address")
    data_dir: str = setting(
        "", "directory, or its URL, that snapshots are written to and read from; other directories are refused", "path"
    )
    token_file: str = setting(
        "", "file with the token that clients must send; required unless --bind is a loopback address", "path"
    )
    tls_cert: str = setting("", "PEM file of the certificate of this server; turns on TLS", "path")
    tls_key: str = setting("", "PEM file of the key of --tls_cert", "path")
    tls_client_ca: str = setting("", "PEM file of the authority whose certificates clients must present", "path")
    metrics_port: int = same_as(StreamConfig, "metrics_port")
    port_file: str = setting("", "file that gets host:port once the service is ready", "path")
    log_format: str = setting("plain", "json: each line of the log is a JSON object", choices=log_lines.FORMATS)
    disk: DiskSettings = DiskSettings()


@dataclasses.dataclass(frozen=True)
class ServiceFlags(Settings, title="Service"):
    service: str = setting(
        "",
        "shards as host:port,host:port, in the order that the workers name them",
        "address",
        flag="embedding_service",
    )
    output: str = setting("", "directory that `save` writes to, inside --data_dir of the shards", "path")
    format: str = setting("table", "form of the output; json: one JSON object", choices=("table", "json"))
    service_timeout: float = setting(10.0, "longest time to retry a shard that does not answer", "seconds", minimum=0.0)
    security: SecurityFiles = SecurityFiles()


@dataclasses.dataclass(frozen=True)
class ScoreLimits(Settings, title="Requests"):
    """Limits of the requests that a scoring server accepts, and how it batches them."""

    max_batch_size: int = setting(
        256, "examples of concurrent requests that are scored together", "examples", minimum=1
    )
    threads: int = setting(
        1,
        "number of batches that are scored concurrently, each on one core; with 1 and rows of a directory, "
        "requests are read between two batches",
        "threads",
        minimum=1,
    )
    max_queue: int = setting(
        4096, "examples that may wait; a request beyond them is refused by status 429", "examples", minimum=1, flag=None
    )
    timeout_secs: float = setting(
        1.0, "longest time to wait for and score a request; after it status 504 answers", "seconds", above=0.0
    )
    max_examples: int = setting(
        1024,
        "most examples in one request; its body may have 4 KiB and 128 values for each of them",
        "examples",
        minimum=1,
    )
    max_list_length: int = setting(
        1000, "values that a bag or sequence of one example may have", "values", minimum=1, flag=None
    )

    @property
    def max_body_bytes(self) -> int:
        """Bytes that the body of a request may have; beyond them status 413 answers."""
        return 4096 * max(self.max_examples, 1024)

    @property
    def max_values(self) -> int:
        """Values that a request may have, each list counted as long as the longest; beyond them status 413 answers."""
        return 128 * max(self.max_examples, 1024)


@dataclasses.dataclass(frozen=True)
class ScoreFlags(Settings, title="Score"):
    model: str = setting(
        "", "publication to serve: a directory, its URL, or redis://host:port,host:port/NAME of a cluster", "path"
    )
    name: str = setting("", "name of the model in the URLs of the server; if not given, the name in the publication")
    bind: str = setting(
        "127.0.0.1:8080",
        "address to listen on, as host:port; port 0 picks a free port, and a host other than loopback requires "
        "--token_file",
        "address",
    )
    shared_port: bool = setting(
        False, "whether several servers of one user may listen on the port; each connection goes to one of them"
    )
    refresh_secs: float = setting(1.0, "longest time between two looks for a record", "seconds", above=0.0, flag=None)
    start_timeout: float = setting(
        60.0, "longest wait at the start for a publication that does not exist yet", "seconds", minimum=0.0
    )
    max_age_secs: float = setting(
        0.0, "age of the served rows above which /healthz answers 503; 0 for no limit", "seconds", minimum=0.0
    )
    stop_secs: float = setting(
        10.0, "longest time for requests in progress to end after SIGTERM", "seconds", minimum=0.0, flag="grace_secs"
    )
    cache_rows: int = setting(
        100_000, "rows per table that are cached when the publication is in a cluster; 0 caches none", minimum=0
    )
    token_file: str = same_as(ServeFlags, "token_file")
    tls_cert: str = same_as(ServeFlags, "tls_cert")
    tls_key: str = same_as(ServeFlags, "tls_key")
    tls_client_ca: str = same_as(ServeFlags, "tls_client_ca")
    port_file: str = same_as(ServeFlags, "port_file")
    log_format: str = same_as(ServeFlags, "log_format")
    limits: ScoreLimits = ScoreLimits()
    redis: RedisFiles = RedisFiles()


@dataclasses.dataclass(frozen=True)
class ExportFlags(Settings, title="Export"):
    export_dir: str = setting(
        "", "directory, or its URL, of the SavedModel to write; `train` writes it at its end", "path"
    )


@dataclasses.dataclass(frozen=True)
class TrainedModelFlags(Settings, title="Use of a trained model"):
    checkpoint: str = setting(
        "auto",
        "checkpoint to use: latest; best, by the metric for which it was kept; a step; auto: best if one is kept, else "
        "latest",
    )
    export_rows: str = setting(
        "all",
        "embedding rows in the SavedModel. all: the SavedModel predicts from raw features; none: it has the dense "
        "tower alone, which takes rows as inputs",
        choices=("all", "none"),
    )
    saved_model: str = setting(
        "", "SavedModel to evaluate in place of a checkpoint; --eval_data is then raw data", "path"
    )
    format: str = setting(
        "csv",
        "format of the raw data that a SavedModel is evaluated on",
        choices=("csv", "criteo", "libsvm", "libffm", "parquet", "tfrecord"),
    )
    output: str = setting(
        "",
        "file, or its URL, to write: the metrics as JSON, or the predictions as Parquet; with several workers, rank r "
        "writes part r next to it",
        "path",
    )
