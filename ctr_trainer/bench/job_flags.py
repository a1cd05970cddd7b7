"""Flags of `bench`, and the flags that all jobs of a benchmark share. Without --train_data, jobs train on W1."""

import dataclasses
import os
import sys
from collections.abc import Sequence

from ctr_trainer.bench.jobs import environment
from ctr_trainer.commands.experiment.experiment import DataSettings, Experiment
from ctr_trainer.data import dataset
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.by_flag import by_flag, changed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.settings.setting import SettingError, Settings, setting
from ctr_trainer.settings.train_settings import TrainSettings
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.child import run_command

_TRACE_STEPS = 20
# Settings that each `Job` sets itself.
_OF_JOBS = (
    *("model_dir", "max_steps", "epochs", "phase_steps", "summary_steps"),
    *("save_checkpoints_steps", "save_checkpoints_secs"),
)
_LEAST_WARMUP = 2
# With Horovod's defaults a search takes at least 1,200 steps; with these values it takes 135.
_PACE = {
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}
AUTOTUNE_LEAST_STEPS = 60  # With fewer steps, a search writes no rows.


@dataclasses.dataclass(frozen=True)
class AccumulationFlags(Settings, title="Bench accumulation"):
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
    machines: int = setting(4, "number of network namespaces, each with a worker", "machines", minimum=1)
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
    workers: tuple[int, ...] = setting(
        (1, 2), "numbers of workers of the jobs to measure", "workers", minimum=1, example=(1, 2, 4)
    )
    rounds: int = setting(
        0, "number of rounds, each of which measures every setting once; 0: 3, or 1 for `network`", "times", minimum=0
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

    accumulation_steps: tuple[int, ...] = setting(  # type: ignore[assignment]  # The base class has a single number.
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


def with_data(bench: BenchFlags, experiment: Experiment) -> Experiment:
    """Returns the experiment with deterministic runs and with data, which is generated if none is given.

    If other settings or limits of the feature spec exclude deterministic runs, `deterministic` stays unchanged.

    Raises:
      UserError: only one of --train_data and --eval_data is given, or the data cannot be made.
    """
    data = experiment.data
    if bool(data.train_data) != bool(data.eval_data):
        raise UserError("speed and AUC need both --train_data and --eval_data; give neither to generate both")
    if not data.train_data:
        made = os.path.abspath(os.path.join(bench.output, f"synthetic-{bench.rows}"))
        if not os.path.exists(os.path.join(made, "test", dataset.FILE)):
            run_command(
                [sys.executable, "-m", "ctr_trainer", "convert", "--format=synthetic", f"--rows={bench.rows}"]
                + [f"--output={made}"],
                "making the data",
                bench.job_timeout,
                env=environment(1),
                merge_stderr=True,
            )
        train, test = (os.path.join(made, name) for name in ("train", "test"))
        data = dataclasses.replace(data, train_data=train, eval_data=test)
    return dataclasses.replace(experiment, data=data, run=_comparable(experiment, data))


def _comparable(experiment: Experiment, data: DataSettings) -> RunConfig:
    """Returns the run settings of jobs whose AUC is compared: deterministic, unless other settings or limits forbid it.

    Equal jobs of several workers otherwise differ by chance, often by more than the settings that are compared.
    """
    run = experiment.run
    if experiment.workers.autotune or _has_limits(data):
        return run
    try:
        return dataclasses.replace(run, deterministic=True)
    except SettingError:
        return run


def _has_limits(data: DataSettings) -> bool:
    if data.feature_spec:
        return bool(FeatureSpec.load(data.feature_spec).limits)
    is_converted = (path_of(data.train_data) / dataset.FILE).exists()
    return is_converted and bool(dataset.open_dataset(data.train_data).spec.limits)


def job_flags(experiment: Experiment, evaluate: bool = False) -> tuple[str, ...]:
    """Returns the flags of `train` that all jobs share and that differ from their defaults, such as "--batch_size=512".

    A job's own flags follow them and override them. They include --eval_data only if the jobs evaluate.
    """
    own = _OF_JOBS if evaluate else (*_OF_JOBS, "eval_data")
    values = {name: value for name, value in changed(experiment).items() if name not in own}
    texts = {name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values.items()}
    return tuple(f"--{name}={text}" for name, text in texts.items())


def described(experiment: Experiment, model: str | None = None) -> str:
    """Describes the model, by `model` or else by its name, the data and the batch size in words."""
    data = experiment.data.train_data or "W1 from memory: 26 fields, 13 numbers, random labels"
    return f"{model or experiment.model.model} on {data}, {experiment.data.batch_size} examples a batch"


def equal_examples(flags: Sequence[str], bench: BenchFlags, experiment: Experiment) -> tuple[int, int]:
    """Returns the (steps, warmup) with which a job with these flags trains on as many examples as the default.

    Each is at least two, so that one step is traced and one is not.
    """
    given = dict(flag.lstrip("-").partition("=")[::2] for flag in flags)
    values = by_flag(experiment)

    def batches(name: str) -> float:
        return int(given.get(name, values[name])) / values[name]

    factor = batches("batch_size") * batches("accumulation_steps")
    warmup = max(round(bench.trace_steps / factor), _LEAST_WARMUP)
    total = round((bench.steps + bench.trace_steps) / factor)
    return max(total - warmup, warmup), warmup


def autotune_flags(log: str | os.PathLike[str]) -> tuple[str, ...]:
    """Returns the flags of `train` with which Horovod searches for its best settings and writes them to a log."""
    return ("--autotune", f"--autotune_log={log}", "--dense_exchange=horovod")


def autotune_pace() -> tuple[tuple[str, str], ...]:
    """Returns (name, value) of the environment variables of a fast search; values that the user set are kept."""
    return tuple((name, os.environ.get(name, value)) for name, value in _PACE.items())
