"""Flags of `bench`."""

import dataclasses

from ctr_trainer.flags.define import flag
from ctr_trainer.flags.training import TrainingFlags


@dataclasses.dataclass(frozen=True)
class BenchFlags:
    """Bench"""

    workers: tuple[int, ...] = flag((1, 2), "of each job that is measured, comma separated", "workers")
    rounds: int = flag(
        0, "how often each setting is measured, all of them in turn; 0: 3 times, of `network` once", "times", minimum=0
    )
    steps: int = flag(
        0, "measured in each run, after a warm-up of --trace_steps; 0: 200, of `network` 100", "steps", minimum=0
    )
    trace_steps: int = flag(20, "between two steps whose operations are traced", "steps", minimum=2)
    output: str = flag("bench", "directory of the reports: JSON and PNG; and of data and models made for them", "path")
    job_timeout: float = flag(1800.0, "longest time that one run may take", "seconds", minimum=1.0)
    axes: tuple[str, ...] = flag((), "of `settings`: which to vary, as sync_steps,batch_size; all by default", "name")
    rows: int = flag(
        200_000,
        "of `settings`, `methods`, `accumulation`: training rows of the data made where none are given; the last makes "
        "as many as its longest run reads, if that is more",
        "rows",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class ListedTrainingFlags(TrainingFlags):
    # The docstring is the group's title in the help.
    """Training"""

    accumulation_steps: tuple[int, ...] = flag(
        (),
        "batches of an optimizer step, 1 if not given; of `accumulation` a list to compare, 1,2,4,8 if not given",
        "batches",
    )

    def of_job(self, accumulation_steps):
        """-> `TrainingFlags` of jobs that have --accumulation_steps in common."""
        return TrainingFlags(**{**vars(self), "accumulation_steps": accumulation_steps})
