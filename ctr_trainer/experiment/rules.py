"""Which settings of an experiment exclude or need each other across classes; checked before anything starts.

What the settings of one class allow, the class says: `Schedule`, `TrainSettings`, `EmbeddingConfig`, `RunConfig`.
"""

import os

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.schedule import check_plateau


def check_training(experiment, evaluation):
    """Raises UserError where settings of a training cannot go together.

    Args:
      experiment: `Experiment`.
      evaluation: `EvaluationConfig`.
    """
    if not experiment.data.epochs and not experiment.data.max_steps:
        raise UserError("--epochs=0 never ends by itself: give --max_steps")
    if evaluation.best_metric and not (evaluation.evaluates or experiment.data.eval_data):
        raise UserError(f"--best_metric={evaluation.best_metric} needs evaluations: give --eval_data")
    if evaluation.early_stopping_patience and not evaluation.evaluates:
        raise UserError(
            f"--early_stopping_patience={evaluation.early_stopping_patience} needs evaluations while training: give "
            "--eval_steps or --eval_epochs, and --eval_data"
        )
    schedule = experiment.train.schedule
    if schedule.name == "plateau":
        check_plateau(schedule.patience, evaluation if evaluation.evaluates else None)
    tunes = experiment.workers.autotune or os.environ.get("HOROVOD_AUTOTUNE", "0") != "0"
    if experiment.run.deterministic and tunes:
        raise UserError(
            "--deterministic: --autotune has Horovod add gradients up in an order that depends on how long it takes: "
            "leave out one of the two"
        )
    way_of_exchange(experiment)


def settings_of_horovod(experiment):
    """-> the flags that are given and are about an exchange by Horovod, and so make it one."""
    train, workers = experiment.train, experiment.workers
    given = {
        "fp16_allreduce": train.fp16_allreduce,
        "overlap_allreduce": train.overlap_allreduce,
        "autotune": workers.autotune,
        "autotune_log": workers.autotune_log,
        "horovod_timeline": workers.horovod_timeline,
    }
    return [name for name, value in given.items() if value]


def way_of_exchange(experiment):
    """Returns how the dense gradients are exchanged, one of `dense_exchange.WAYS`.

    Raises:
      UserError: through shared memory, with settings of Horovod's exchange.
    """
    given = settings_of_horovod(experiment)
    if given and (way := experiment.workers.dense_exchange) in ("shared_memory", "hosts"):
        names = ", ".join(f"--{name}" for name in given)
        raise UserError(f"{names}: of an exchange by Horovod, not of --dense_exchange={way}")
    return "horovod" if given else experiment.workers.dense_exchange
