"""Flags of `bench`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class BenchFlags:
    """Bench"""

    workers: tuple[int, ...] = flag((1, 2), "of each job that is measured, comma separated", "workers")
    rounds: int = flag(
        0, "how often each setting is measured, all of them in turn; 0: 3 times, of `network` once", "times", minimum=0
    )
    steps: int = flag(200, "measured in each run, after a warm-up of --trace_steps", "steps", minimum=1)
    trace_steps: int = flag(20, "between two steps whose operations are traced", "steps", minimum=2)
    output: str = flag("bench", "directory of the reports: JSON and PNG; and of data and models made for them", "path")
    job_timeout: float = flag(1800.0, "longest time that one run may take", "seconds", minimum=1.0)
    axes: tuple[str, ...] = flag((), "of `settings`: which to vary, as sync_steps,batch_size; all by default", "name")
    rows: int = flag(
        200_000, "of `settings`, `methods`: training rows of the data made where none are given", "rows", minimum=1
    )
