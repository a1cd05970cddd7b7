"""Settings of the log."""

import dataclasses

from ctr_trainer.messages import log_lines
from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class LogSettings(Settings, title="Log"):
    """What the log looks like."""

    log_format: str = setting(
        "plain",
        "form of the log's lines; json: each line of the log, and of a service started here, is one JSON object",
        choices=log_lines.FORMATS,
        alike=False,
    )
    log_ranks: str = setting(
        "all",
        "ranks whose log is whole; chief: other ranks log warnings and errors only",
        choices=log_lines.RANKS,
        alike=False,
    )
