"""Flags of `bench`."""

import dataclasses

from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.train_settings import TrainSettings


@dataclasses.dataclass(frozen=True)
class BenchFlags(Settings, title="Bench"):
    """Bench."""

    workers: tuple[int, ...] = setting(
        (1, 2), "workers of each job that is measured", "workers", minimum=1, example=(1, 2, 4)
    )
    rounds: int = setting(
        0,
        "rounds: how often each setting is measured, all of them in turn; 0: 3 times, of `network` once",
        "times",
        minimum=0,
    )
    steps: int = setting(
        0, "steps measured in each run, after a warm-up of --trace_steps; 0: 200, of `network` 100", "steps", minimum=0
    )
    trace_steps: int = setting(20, "steps between two steps whose operations are traced", "steps", minimum=2)
    output: str = setting(
        "bench", "directory of the reports: JSON and PNG; and of data and models made for them", "path"
    )
    job_timeout: float = setting(1800.0, "longest time that one run may take", "seconds", minimum=1.0)
    axes: tuple[str, ...] = setting(
        (), "axes that `settings` varies; all by default", "name", example=("sync_steps", "batch_size")
    )
    rows: int = setting(
        200_000,
        "training rows of the data that `settings`, `methods` and `accumulation` make where none are given; the last "
        "makes as many as its longest run reads, if that is more",
        "rows",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class ListedTraining(TrainSettings):
    """Training settings whose batches of a step are a list."""

    accumulation_steps: tuple[int, ...] = setting(
        (),
        "batches of an optimizer step, 1 if not given; of `accumulation` a list to compare, 1,2,4,8 if not given; 0 or "
        "1 accumulates none",
        "batches",
        minimum=0,
        example=(1, 2, 4),
    )


@dataclasses.dataclass(frozen=True)
class ListedExperiment(Experiment):
    """What the jobs of a bench train, with a list of the batches of a step."""

    train: ListedTraining = ListedTraining()

    def of_job(self, accumulation_steps):
        """-> the `Experiment` of jobs that have --accumulation_steps in common."""
        train = TrainSettings(**{**vars(self.train), "accumulation_steps": accumulation_steps})
        return Experiment(**{**vars(self), "train": train})
