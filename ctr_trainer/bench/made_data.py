"""Data to train and evaluate on, made for a benchmark that was given none."""

import dataclasses
import os
import sys

from ctr_trainer.bench.jobs import environment
from ctr_trainer.data import dataset
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes.command import run as run_command


def with_data(bench, experiment):
    """-> the experiment on --train_data and --eval_data; where they are not given, on data that is made once.

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
    return dataclasses.replace(experiment, data=data)
