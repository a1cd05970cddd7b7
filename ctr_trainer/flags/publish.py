"""Flags of `publish`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class PublishFlags(Settings, title="Publish"):
    """Publish."""

    to: str = setting("", "directory, its URL, or redis://host:port,host:port/NAME of a cluster, to publish to", "path")
    source: str = setting(
        "", "spool of a training to deliver, and to go on delivering, in place of a checkpoint", "path", flag="from"
    )
    exit_with_stdin: bool = setting(False, "end when standard input closes, that is with the process that started it")
