"""Flags of `bench`."""

import dataclasses

from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.train_settings import TrainSettings

_TRACE_STEPS = 20


@dataclasses.dataclass(frozen=True)
class AccumulationFlags(Settings, title="Bench accumulation"):
    """Bench accumulation."""

    equal: tuple[str, ...] = setting(
        ("examples",),
        "what the runs of all --accumulation_steps have as many of: examples, steps of the optimizer, or "
        "examples,steps for both in turn, which tells the loss by fewer steps from that by larger batches",
        "name",
    )
    evaluations: int = setting(
        5,
        "evaluations of each run on --eval_data, evenly spaced; the last one is at the end of the run",
        "times",
        minimum=1,
        flag=None,
    )


@dataclasses.dataclass(frozen=True)
class NetworkFlags(Settings, title="Bench network"):
    """Bench network."""

    machines: int = setting(
        4, "network namespaces with a worker each; of `simulate`: of the job", "machines", minimum=1
    )
    gbit: tuple[str, ...] = setting((), "speeds of each machine's network, each way; 0: no limit", "Gbit/s")
    dense_params: tuple[str, ...] = setting(
        (),
        "dense networks, in turn: resnet50, vgg16 or a number for layers with as many parameters, conv for "
        "convolutions with ResNet-50's; none: --hidden_units. With /N at the end, as resnet50/100, an N-th of them",
        "name",
    )
    ways: tuple[str, ...] = setting(
        (), "ways of the gradients: plain, fp16, accumulation, sync, autotune; plain,fp16,autotune by default", "name"
    )


@dataclasses.dataclass(frozen=True)
class SimulateFlags(Settings, title="Bench simulate"):
    """Bench simulate."""

    costs: str = setting("", "JSON of costs, as a run without this flag measures and writes them", "path")
    check: bool = setting(False, "run jobs of --workers, and print how far the prediction was off")
    worker_cores: int = setting(
        0, "cores of each machine of --machines; 0: as many as this one has", "cores", minimum=0
    )
    most_workers: int = setting(1000, "workers up to which the prediction goes", "workers", minimum=1, flag=None)


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
        0,
        "steps measured in each run, after a warm-up of 20 or a third as many; 0: 200, of `network` 100",
        "steps",
        minimum=0,
    )
    output: str = setting(
        "bench", "directory of the reports: JSON and PNG; and of data and models made for them", "path"
    )
    job_timeout: float = setting(1800.0, "longest time that one run may take", "seconds", minimum=1.0, flag=None)
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

    @property
    def trace_steps(self) -> int:
        """The number of steps between two traced steps, and of the warm-up."""
        return max(2, min(_TRACE_STEPS, self.steps // 3))


@dataclasses.dataclass(frozen=True)
class ListedTraining(TrainSettings):
    """Training settings whose batches of a step are a list."""

    accumulation_steps: tuple[int, ...] = setting(  # type: ignore[assignment]  # A list is what sets it apart.
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

    def of_job(self, accumulation_steps: int) -> Experiment:
        """Returns the `Experiment` of jobs that have --accumulation_steps in common."""
        train = TrainSettings(**{**vars(self.train), "accumulation_steps": accumulation_steps})
        return Experiment(**{**vars(self), "train": train})
