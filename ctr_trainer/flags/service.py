"""Flags of `service`."""

import dataclasses

from ctr_trainer.settings.security_files import SecurityFiles
from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class ServiceFlags(Settings, title="Service"):
    """Service."""

    service: str = setting("", "shards as host:port,host:port, in the order that the workers name them", "address")
    path: str = setting("", "directory that `save` writes, inside the shards' --data_dir", "path")
    json: bool = setting(False, "print one JSON object in place of a table")
    service_timeout: float = setting(
        10.0, "time for which a shard that does not answer is asked again", "seconds", minimum=0.0
    )
    security: SecurityFiles = SecurityFiles()
