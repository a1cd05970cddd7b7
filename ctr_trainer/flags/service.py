"""Flags of `service`."""

import dataclasses

from ctr_trainer.flags.client import ClientFlags
from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ServiceFlags(ClientFlags):
    """Service"""

    service: str = flag("", "the shards as host:port,host:port, in the order that the workers name them", "address")
    path: str = flag("", "directory that `save` writes, inside the shards' --data_dir", "path")
    json: bool = flag(False, "print one JSON object in place of a table")
    service_timeout: float = flag(10.0, "how long a shard that does not answer is asked", "seconds", minimum=0.0)
