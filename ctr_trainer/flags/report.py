"""Flags of `report`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class ReportFlags(Settings, title="Report"):
    """Report."""

    output: str = setting("report", "directory of the curves, as PNG files; none are written if empty", "path")
