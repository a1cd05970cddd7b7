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
        "what is equal in the runs of all --accumulation_steps: the number of examples, of optimizer steps, or "
        "examples,steps for both in turn, which separates the effect of fewer steps from the effect of larger batches",
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
        4,
        "number of network namespaces, each with a worker",
        "machines",
        minimum=1,
    )
    gbit: tuple[str, ...] = setting(
        (), "network speeds of a machine to measure, in each direction; 0: no limit", "Gbit/s"
    )
    dense_params: tuple[str, ...] = setting(
        (),
        "dense networks to measure in turn. resnet50, vgg16 or a number: layers with this number of parameters; conv: "
        "convolutions with the parameters of ResNet-50; none: --hidden_units. A suffix /N, such as resnet50/100, "
        "divides the number of parameters by N",
        "name",
    )
    ways: tuple[str, ...] = setting(
        (),
        "ways to exchange the gradients: plain, fp16, accumulation, sync, autotune; plain,fp16,autotune by default",
        "name",
    )


@dataclasses.dataclass(frozen=True)
class BenchFlags(Settings, title="Bench"):
    """Bench."""

    workers: tuple[int, ...] = setting(
        (1, 2), "numbers of workers of the jobs to measure", "workers", minimum=1, example=(1, 2, 4)
    )
    rounds: int = setting(
        0,
        "number of rounds, each of which measures every setting once; 0: 3, or 1 for `network`",
        "times",
        minimum=0,
    )
    steps: int = setting(
        0,
        "steps to measure per run, after a warm-up of 20 steps or a third as many; 0: 200, or 100 for `network`",
        "steps",
        minimum=0,
    )
    output: str = setting(
        "bench", "directory for the reports (JSON and PNG) and for data and models made for them", "path"
    )
    job_timeout: float = setting(1800.0, "longest time that one run may take", "seconds", minimum=1.0, flag=None)
    axes: tuple[str, ...] = setting(
        (), "axes that `settings` varies; all if not given", "name", example=("sync_steps", "batch_size")
    )
    rows: int = setting(
        200_000,
        "training rows of the data that `settings`, `methods` and `accumulation` generate if none are given; "
        "`accumulation` generates more if its longest run needs them",
        "rows",
        minimum=1,
    )

    @property
    def trace_steps(self) -> int:
        """The number of steps between two traced steps; also the number of warm-up steps."""
        return max(2, min(_TRACE_STEPS, self.steps // 3))


@dataclasses.dataclass(frozen=True)
class ListedTraining(TrainSettings):
    """Training settings with a list of numbers of batches per optimizer step."""

    accumulation_steps: tuple[int, ...] = setting(  # type: ignore[assignment]  # The base class has one number.
        (),
        "batches per optimizer step, 1 if not given; for `accumulation` a list to compare, 1,2,4,8 if not given; 0 and "
        "1 do not accumulate",
        "batches",
        minimum=0,
        example=(1, 2, 4),
    )


@dataclasses.dataclass(frozen=True)
class ListedExperiment(Experiment):
    """The experiment of a benchmark's jobs, with a list of numbers of batches per optimizer step."""

    train: ListedTraining = ListedTraining()

    def of_job(self, accumulation_steps: int) -> Experiment:
        """Returns the `Experiment` with one value of --accumulation_steps."""
        train = TrainSettings(**{**vars(self.train), "accumulation_steps": accumulation_steps})
        return Experiment(**{**vars(self), "train": train})
