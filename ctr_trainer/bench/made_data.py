"""Data to train and evaluate on, made for a benchmark that was given none."""

import dataclasses
import os
import sys

from ctr_trainer.bench.jobs import environment
from ctr_trainer.data import dataset
from ctr_trainer.experiment.experiment import DataSettings, Experiment
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes.child import run_command as run_command
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.settings.setting import SettingError


def with_data(bench, experiment):
    """Returns the experiment of jobs that are evaluated: on data that is made if none is given, and deterministic.

    It stays as it is in this respect if its settings, or limits of its feature spec, exclude deterministic runs.

    Raises:
      UserError: only one of the two is given, or the data cannot be made.
    """
    data = experiment.data
    if bool(data.train_data) != bool(data.eval_data):
        raise UserError("speed and AUC need both --train_data and --eval_data; without either, data is made for them")
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
