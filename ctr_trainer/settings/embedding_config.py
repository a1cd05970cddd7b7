"""Where the embedding rows live, and how they are trained."""

import dataclasses
import re
from collections.abc import Iterator

from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS, RowAdagrad, RowOptimizer
from ctr_trainer.settings.setting import Settings, one_of, setting
from ctr_trainer.system.messages.errors import UserError

_BYTES = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", re.IGNORECASE)


def refused_on_disk(table: str) -> UserError:
    """Returns the error of a table with `max_rows` whose rows may go to disk."""
    return UserError(
        f"table {table}: table_memory sends rows to disk, where max_rows in [[limits]] would have to compare all rows: "
        "leave out one of the two; ttl_steps removes old rows"
    )


def parse_bytes(text: str) -> int | None:
    """Returns the number of bytes in a text such as 500MB or 4GiB; None if it is not such a text."""
    if not (found := _BYTES.fullmatch(text)):
        return None
    number, prefix, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


@dataclasses.dataclass(frozen=True)
class SecurityFiles(Settings, title="Security of the embedding service"):
    """The arguments of `security.ClientSecurity.read`, in its order; "" for no file."""

    token_file: str = setting(
        "", "file with the token that the embedding service requires of its clients", "path", alike=False
    )
    service_ca: str = setting(
        "", "PEM file of the authority that signed the certificate of the service; turns on TLS", "path", alike=False
    )
    service_cert: str = setting(
        "", "PEM file of this client's certificate and key, if the service requires them", "path", alike=False
    )


@dataclasses.dataclass(frozen=True)
class DiskSettings(Settings, title="Embedding rows on disk"):
    table_memory: str = setting(
        "",
        "memory for the rows of this process, or of all services that it starts, as 4GiB; rows that do not fit lie in "
        "table_dir and return when they are used. By default, all rows are in memory",
        "size",
    )
    table_dir: str = setting(
        "",
        "directory of a local disk for the rows beyond table_memory; model_dir, or TMPDIR if that is a URL",
        "path",
        alike=False,
    )

    def conflicts(self) -> Iterator[str]:
        if self.table_memory and not parse_bytes(self.table_memory):
            yield "{table_memory}: expected a number of bytes, as 500MiB or 4GiB"
        if self.table_dir and not self.table_memory:
            yield "{table_dir} is for the rows beyond {table_memory:name}, which is not set"


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(Settings, title="Embedding rows and their service"):
    """Where the embedding rows live and how they are trained.

    Staleness: with one worker, or with `service="shared"`, a step reads the newest rows. Otherwise each host, or each
    worker, trains copies of the rows, and a copy may lack the updates of other copies since the last sync, that is, of
    up to `sync_steps` steps. With `RunConfig.deterministic`, syncs are collectives, and a lookup sees all pushes of the
    previous window.

    `embedding.worker.merging` describes how the changes of several copies are merged, and how the number of workers
    changes the updates. The initial weights are uniform; linear weights start at 0.

    Raises:
      UserError: a setting is out of its range, or settings exclude each other.
    """

    service: str = setting(
        "auto",
        "where the embedding rows live. auto: in the process of one worker, or in a local service for several; shared: "
        "in memory that the workers of this host share, without syncs; or host:port,host:port of the shards of a "
        "running service",
        flag="embedding_service",
    )
    optimizer: RowOptimizer | str = one_of(
        RowAdagrad(),
        ROW_OPTIMIZERS,
        "optimizer of the embedding rows; a dense_ optimizer updates all rows at each step, the others only the rows "
        "of the batch",
        flag="embedding_optimizer",
    )
    learning_rate: float = setting(
        0.05,
        "learning rate of the embedding rows for one worker; --scale_lr adapts it to several workers",
        "1/step",
        minimum=0.0,
        flag="embedding_learning_rate",
    )
    stddev: float = setting(
        0.01, "standard deviation of the initial weights of a new row", minimum=0.0, flag="embedding_stddev"
    )
    l2: float = setting(
        0.0,
        "L2 regularization of the embedding rows: adds l2 / 2 * sum w^2 to the loss, over the distinct rows of the "
        "step, or over all rows with a dense_ optimizer; 0 has none",
        minimum=0.0,
        flag="embedding_l2",
    )
    clip_norm: float = setting(
        0.0,
        "largest global norm of the dense gradients, and of the row gradients of a worker; larger gradients are scaled "
        "down to it. 0 for no limit",
        minimum=0.0,
    )
    row_copies: str = setting(
        "host",
        "who trains a copy of the service's rows: the workers of a host together, in memory that they share, or each "
        "worker alone; a system without such memory has one copy per worker",
        choices=("host", "worker"),
    )
    sync_steps: int = setting(
        30,
        "steps between two syncs of the rows with the service. A row may lack the updates that other hosts made since "
        "the last sync",
        "steps",
        minimum=1,
    )
    row_dtype: str = setting(
        "float32",
        "type of the weights of embeddings wherever rows are kept or sent: tables, syncs, checkpoints and exports. "
        "int8 has a scale per row; both smaller types are rounded stochastically. Optimizer state and linear weights "
        "stay float32",
        choices=("float32", "float16", "int8"),
    )
    service_timeout: float = setting(
        60.0,
        "longest time to retry an embedding service that does not answer; after it training ends with an error",
        "seconds",
        minimum=0.0,
        flag=None,
    )
    service_shards: int = setting(
        1,
        "shards (processes) of the service that --embedding_service=auto starts for several workers; raise it if one "
        "core cannot keep up",
        "processes",
        minimum=1,
    )
    disk: DiskSettings = DiskSettings()
    security: SecurityFiles = SecurityFiles()

    @property
    def row_optimizer(self) -> RowOptimizer:
        """The optimizer of the rows; the constructor replaces a name by that optimizer's default settings."""
        assert isinstance(self.optimizer, RowOptimizer)
        return self.optimizer

    def conflicts(self) -> Iterator[str]:
        if self.service_shards > 1 and self.service != "auto":
            yield (
                "{service_shards} is for services that the job starts itself, and {service} names those that run: "
                "leave out {service_shards:name}, or use {service:name}=auto"
            )
        if self.disk.table_memory and self.service == "shared":
            yield "table_memory is of one process, and with {service} there are several: use {service:name}=auto"
        elif self.disk.table_memory and self.service != "auto":
            yield "the rows are in {service}: give table_memory to `serve`, which starts its shards"
        elif self.disk.table_memory and self.row_optimizer.moves_all_rows:
            yield "{optimizer} moves every row at every step, also those on disk: take the one without dense_"
        if self.row_optimizer.moves_all_rows and self.service not in ("auto", "shared"):
            yield (
                "{optimizer} moves every row at every step, which the rows of {service} cannot: leave out "
                "{service:name}, or take the optimizer without dense_"
            )
