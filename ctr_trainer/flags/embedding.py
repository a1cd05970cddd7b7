"""Flags of the embeddings and their service, as a training job sees it."""

import dataclasses

from ctr_trainer.flags.client import ClientFlags
from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class EmbeddingFlags(ClientFlags):
    """Embeddings and their service"""

    embedding_service: str = flag(
        "auto",
        "auto: in the process for one worker, a local service for several; or running shards as host:port,host:port",
    )
    embedding_optimizer: str = flag("adagrad", "of the embedding rows", choices=("sgd", "adagrad", "rowwise_adagrad"))
    embedding_learning_rate: float = flag(0.05, "of the embedding rows, for one worker", "1/step", minimum=0.0)
    initial_accumulator: float = flag(1e-4, "what Adagrad's state of a new row starts at", minimum=0.0)
    embedding_stddev: float = flag(0.01, "standard deviation of a new row's weights", minimum=0.0)
    sync_steps: int = flag(30, "steps between two syncs of the rows with the service", "steps", minimum=1)
    strict_sync: bool = flag(
        False, "all workers push, meet, then pull at a sync: every lookup sees every push of the window before"
    )
    sync_compression: str = flag("none", "how rows travel: as they are, or as float16", choices=("none", "fp16"))
    service_timeout: float = flag(60.0, "how long a lost service is retried", "seconds", minimum=0.0)
    service_shards: int = flag(
        1, "services that `auto` starts for several workers, each with a share of the rows", "processes", minimum=1
    )
    service_restarts: int = flag(
        0, "how often a lost service of `auto` is started again, from the last checkpoint", "times", minimum=0
    )
