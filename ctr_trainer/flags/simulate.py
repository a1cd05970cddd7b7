"""Flags of `bench simulate`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class SimulateFlags:
    """Bench simulate"""

    costs: str = flag("", "JSON of costs, as a run without this flag measures and writes them", "path")
    check: bool = flag(False, "also run jobs of --workers, and print how far the prediction was off")
    worker_cores: int = flag(0, "of each machine of --machines; 0: as many as this one has", "cores", minimum=0)
    most_workers: int = flag(1000, "up to which the prediction goes", "workers", minimum=1)
