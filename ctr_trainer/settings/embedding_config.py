"""Where the embedding rows live, and how they are trained."""

import dataclasses
from collections.abc import Iterator

from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS, RowAdagrad, RowOptimizer
from ctr_trainer.settings.setting import Settings, one_of, setting


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
        if self.row_optimizer.moves_all_rows and self.service not in ("auto", "shared"):
            yield (
                "{optimizer} moves every row at every step, which the rows of {service} cannot: leave out "
                "{service:name}, or take the optimizer without dense_"
            )
