"""Flags of the embeddings and their service, as a training job sees it."""

import dataclasses

from ctr_trainer.flags.client import ClientFlags
from ctr_trainer.flags.define import flag

# Those of `embedding.table.sparse_optimizers`, which takes Numba to import.
OPTIMIZERS = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adamw", "ftrl")


@dataclasses.dataclass(frozen=True)
class EmbeddingFlags(ClientFlags):
    """Embeddings and their service"""

    embedding_service: str = flag(
        "auto",
        "auto: in the process for one worker, a local service for several; shared: the workers of this host train the "
        "same rows in shared memory, without syncs; or running shards as host:port,host:port",
    )
    embedding_optimizer: str = flag("adagrad", "of the embedding rows", choices=OPTIMIZERS)
    embedding_learning_rate: float = flag(0.05, "of the embedding rows, for one worker", "1/step", minimum=0.0)
    initial_accumulator: float = flag(
        1e-4, "what the sum of squares of a new row starts at: adagrad, rowwise_adagrad, ftrl", minimum=0.0
    )
    embedding_momentum: float = flag(0.9, "of --embedding_optimizer=momentum", "share kept a step", minimum=0.0)
    embedding_beta1: float = flag(0.9, "of adam and adamw: the mean gradient's", "share kept a step", minimum=0.0)
    embedding_beta2: float = flag(0.999, "of adam and adamw: the mean square's", "share kept a step", minimum=0.0)
    embedding_epsilon: float = flag(1e-8, "of adam, adamw and rowwise_adagrad: beside the root", minimum=0.0)
    embedding_weight_decay: float = flag(
        0.01, "of adamw: decoupled decay of the rows of a batch", "times the learning rate", minimum=0.0
    )
    embedding_ftrl_l1: float = flag(0.0, "of ftrl: penalty l1 * |w| of each weight", minimum=0.0)
    embedding_ftrl_l2: float = flag(0.0, "of ftrl: penalty l2 * w * w of each weight", minimum=0.0)
    embedding_stddev: float = flag(0.01, "standard deviation of a new row's weights", minimum=0.0)
    embedding_l2: float = flag(0.0, "adds l2 / 2 * sum w^2 of the distinct rows of a step to the loss", minimum=0.0)
    overlap_lookup: bool = flag(
        False, "look rows up and train them beside the steps, on a second core: a step's rows lack the step before"
    )
    row_copies: str = flag(
        "auto",
        "who keeps copies of the service's rows: each host one, in memory that its workers share, or each worker its "
        "own; auto is host, but worker with --strict_sync",
        choices=("auto", "host", "worker"),
    )
    sync_steps: int = flag(30, "steps between two syncs of the rows with the service", "steps", minimum=1)
    strict_sync: bool = flag(
        False, "all workers push, meet, then pull at a sync: every lookup sees every push of the window before"
    )
    sync_merge: str = flag(
        "adaptive",
        "what becomes of several workers' changes of a row, see docs/staleness.md",
        choices=("sum", "mean", "adaptive"),
    )
    sync_compression: str = flag("none", "how rows travel: as they are, or as float16", choices=("none", "fp16"))
    service_timeout: float = flag(60.0, "how long a lost service is retried", "seconds", minimum=0.0)
    service_shards: int = flag(
        1, "services that `auto` starts for several workers, each with a share of the rows", "processes", minimum=1
    )
    service_restarts: int = flag(
        0, "how often a lost service of `auto` is started again, from the last checkpoint", "times", minimum=0
    )
