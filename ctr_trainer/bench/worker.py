"""A worker of a job that is measured: trains as `train` does, and leaves what it found in a file of its rank."""

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from absl import flags as absl_flags

from ctr_trainer import flags
from ctr_trainer.messages import log_lines
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import tensorflow_import
from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class WorkerFlags(Settings, title="Worker"):
    """What a job tells its workers beside the flags of `train`."""

    result_dir: str = setting("", "directory where rank r writes rank-r.json", "path")
    core_shares: int = setting(
        0, "equal parts of a machine's cores; a worker gets one; 0: as many as workers", minimum=0
    )
    towers: int = setting(1, "parts that a batch is cut into, each computed on a device of its own", minimum=1)


def main():
    """-> the exit status, as that of `python -m ctr_trainer`."""
    tensorflow_import.install()
    log_lines.install(rank=log_lines.rank_of_this_process())
    groups = (WorkerFlags, *flags.TRAINING)
    try:
        values = flags.define(groups)
        values(sys.argv)
        found = _measure(*(flags.read(group, values) for group in groups))
    except (absl_flags.Error, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = os.path.join(values["result_dir"].value, f"rank-{found['rank']}.json")
    with open(path, "w") as file:
        json.dump(found, file)
    return 0


def _measure(worker, experiment, evaluation, metrics, export):
    """Trains; evaluates where there is --eval_data, on the way if --eval_steps says so. -> dict, see `result`."""
    from ctr_trainer.bench.device_towers import gpus_of, in_towers
    from ctr_trainer.bench.workload import W1Batches
    from ctr_trainer.estimator.evaluation_history import EvaluationHistory
    from ctr_trainer.experiment.build import (
        make_estimator,
        make_eval_spec,
        reader,
        start_workers,
        training_reader,
        with_label_rates,
    )
    from ctr_trainer.ranks import distributed

    data = experiment.data
    start_workers(experiment, worker.core_shares, (gpus_of(worker.towers) if worker.towers > 1 else 0) or 1)
    if data.train_data:
        experiment = with_label_rates(experiment)
    estimator = make_estimator(experiment)
    if worker.towers > 1:
        estimator.model_fn = in_towers(estimator.model_fn, worker.towers)

    def train_input_fn(position):
        if not data.train_data:
            return W1Batches(data.batch_size, None, distributed.rank())
        return training_reader(experiment, position)

    def eval_input_fn():
        return reader(experiment, data.eval_data, once=True)

    eval_spec = make_eval_spec(evaluation, metrics, eval_input_fn)
    trained = estimator.train(train_input_fn, max_steps=data.max_steps, evaluation=eval_spec)
    evaluations, evaluation_seconds = [], trained["phase_seconds"]["evaluation"]["mean"]
    if eval_spec:
        evaluations = EvaluationHistory.load(experiment.model.model_dir).evaluations
    elif data.eval_data:
        start = time.perf_counter()
        evaluated = estimator.evaluate(eval_input_fn, metrics=metrics)
        evaluation_seconds += time.perf_counter() - start
        evaluations = [{"step": evaluated["global_step"], **evaluated}]
    training = experiment.train
    found = result(distributed.rank(), trained, evaluations, data.batch_size * training.accumulation_steps)
    scale = distributed.lr_scale(training.scale_lr, training.accumulation_steps)
    return {**found, "evaluation_seconds": evaluation_seconds, "learning_rate": training.learning_rate * scale}


def result(
    rank: int, trained: Mapping[str, Any], evaluations: list[dict[str, Any]], examples_per_step: int
) -> dict[str, Any]:
    """Returns what a worker leaves of its training and its evaluations.

    Returns:
      dict of `rank`, `examples_per_sec` of this rank over the steps that count, without the time of evaluations,
      `phases` and `load` as `Estimator.train` returns them, what all ranks `held` of memory and GPUs (see
      `RunSummary.results`), `training_auc` of the training examples of all ranks as they came, `auc`, `accuracy`,
      `logloss` and `copc` of the last evaluation, and `evaluations`, a list of dicts with the `step` and the `auc` of
      each. What was not measured is left out. If there are several labels, each is the mean over the labels.
    """
    phases = trained["phases"]
    learned = _mean_of_labels(evaluations[-1], ("auc", "accuracy", "logloss", "copc")) if evaluations else {}
    training = _mean_of_labels(trained, ("auc",))
    return {
        "rank": rank,
        "examples_per_sec": examples_per_step / (phases["step_seconds"] - phases["seconds"].get("evaluation", 0.0)),
        "phases": phases,
        "load": trained["load"],
        "held": {name: trained[name] for name in ("resident_bytes", "service_resident_bytes", "gpu")},
        **({"training_auc": training["auc"]} if training else {}),
        **learned,
        "evaluations": [{"step": each["step"], **_mean_of_labels(each, ("auc",))} for each in evaluations],
    }


def _mean_of_labels(metrics, names):
    """-> dict of the metrics of these names; of `auc/click` and `auc/buy`, as models of several labels have them, the
    mean is the `auc`.
    """
    found = {}
    for name in names:
        values = [value for key, value in metrics.items() if key.partition("/")[0] == name]
        if values:
            found[name] = statistics.fmean(values)
    return found


if __name__ == "__main__":
    sys.exit(main())
