"""Flags of `report`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ReportFlags:
    """Report"""

    output: str = flag("report", "directory of the curves, as PNG files; none are written if empty", "path")
