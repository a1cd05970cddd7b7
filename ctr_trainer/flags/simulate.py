"""Flags of `bench simulate`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class SimulateFlags(Settings, title="Bench simulate"):
    """Bench simulate."""

    costs: str = setting("", "JSON of costs, as a run without this flag measures and writes them", "path")
    check: bool = setting(False, "run jobs of --workers, and print how far the prediction was off")
    worker_cores: int = setting(
        0, "cores of each machine of --machines; 0: as many as this one has", "cores", minimum=0
    )
    most_workers: int = setting(1000, "workers up to which the prediction goes", "workers", minimum=1)
