"""A worker of a measured job, which writes its results to a file; and W1, the workload of jobs without data.

Ids follow Zipf(1.2), truncated to 2,000,000 / 26 values per field; labels follow Bernoulli(0.25). W1 measures speed
only, as its labels do not depend on its features.
"""

import argparse
import dataclasses
import itertools
import json
import math
import operator
import pathlib
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.reports.training_run import METRICS_FILE
from ctr_trainer.data.batch import Batch
from ctr_trainer.features.columns import DenseFeature, Label, SparseFeature, Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.ranks.notices import Placement
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

FIELDS, DENSE, DIM, VOCABULARY = 26, 13, 16, 2_000_000
PER_FIELD = VOCABULARY // FIELDS
HIDDEN_UNITS = (256, 128, 64)
LEARNING_RATE, INITIAL_ACCUMULATOR, STDDEV = 0.01, 0.1, 0.01
BATCHES = 64


def arrays(batch_size: int, rank: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (ids, dense, labels) of all batches; the rank is the random seed.

    `ids` is int64[64, B, 26], the ids of one vocabulary; `dense` is float32[64, B, 13]; `labels` is float32[64, B].
    """
    rng = np.random.default_rng(rank)
    ids = np.minimum(rng.zipf(1.2, (BATCHES, batch_size, FIELDS)), PER_FIELD - 1).astype(np.int64)
    dense = rng.standard_normal((BATCHES, batch_size, DENSE), dtype=np.float32)
    labels = (rng.random((BATCHES, batch_size)) < 0.25).astype(np.float32)
    return ids + np.arange(FIELDS, dtype=np.int64) * PER_FIELD, dense, labels


def spec() -> FeatureSpec:
    """Returns the feature spec of W1."""
    return FeatureSpec(
        name="w1",
        label=Label("label"),
        dense=tuple(DenseFeature(f"I{i}", f"I{i}") for i in range(DENSE)),
        sparse=tuple(SparseFeature(f"C{i}", f"C{i}", DIM, f"C{i}") for i in range(FIELDS)),
    )


def drawn(batch_size: int, distinct: int, exponent: float) -> Iterator[np.ndarray]:
    """Yields keys, int64[B, 26]: first each of `distinct` keys once, then draws from Zipf(exponent), 0 for uniform.

    A draw is the integer part of one from the bounded Pareto distribution, which needs no table of probabilities.
    """
    rng, count, power = np.random.default_rng(0), batch_size * FIELDS, 1 - exponent
    firsts = ((np.arange(first, first + count) % distinct) for first in range(0, distinct, count))
    most = (distinct + 1) ** power - 1
    later = (((most * rng.random(count) + 1) ** (1 / power)).astype(np.int64) - 1 for _ in itertools.repeat(None))
    for ranks in itertools.chain(firsts, later):
        mixed = (np.minimum(ranks, distinct - 1) + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        yield mixed.view(np.int64).reshape(batch_size, FIELDS)


class W1Batches:
    """In-memory batches of W1, which the Estimator reads instead of a `BatchReader`; each rank has different batches.

    `count` is the number of batches; None for infinitely many. With `distinct`, the keys are those of `drawn`.
    """

    def __init__(
        self, batch_size: int, count: int | None, rank: int = 0, distinct: int = 0, exponent: float = 0.0
    ) -> None:
        self.spec = spec()
        self.statistics: Statistics = {}
        self.batch_size = batch_size
        self._count = count
        ids, dense, labels = arrays(batch_size, rank)
        weights = np.ones(batch_size, np.float32)
        table = self.spec.tables[0].name
        self._batches = [  # Key 0 means no value.
            Batch(batch_size, {table: i + 1}, {}, d, y, weights) for i, d, y in zip(ids, dense, labels, strict=True)
        ]
        self._keys = drawn(batch_size, distinct, exponent) if distinct else None

    def __iter__(self) -> Iterator[Batch]:
        batches: Iterator[Batch] = itertools.cycle(self._batches)
        if self._keys is not None:
            table = self.spec.tables[0].name
            pairs = zip(batches, self._keys, strict=False)
            batches = (dataclasses.replace(batch, keys={table: keys}) for batch, keys in pairs)
        yield from itertools.islice(batches, self._count)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Returns the worker's own flags, and the flags of `train`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--result_dir", required=True, help="directory where rank r writes rank-r.json")
    about = "equal parts of a machine's cores, one for each worker; 0: as many parts as workers"
    parser.add_argument("--core_shares", type=int, default=0, help=about)
    parser.add_argument("--distinct", type=int, default=0, help="number of keys; 0 for those of W1")
    parser.add_argument("--exponent", type=float, default=0.0, help="of the Zipf distribution of these keys")
    parser.add_argument("--towers", type=int, default=1, help="parts of a batch, each computed on its own device")
    return parser.parse_known_args()


def write(result_dir: str, found: Mapping[str, Any]) -> None:
    """Writes the results of a rank to a file, which `jobs.run_workers` reads."""
    pathlib.Path(result_dir, f"rank-{found['rank']}.json").write_text(json.dumps(found))


def main() -> None:
    tensorflow_import.load()
    log_lines.install(rank=Placement.of_this_process().rank)
    own, given = arguments()
    try:
        experiment, evaluation, _ = flags.parse(flags.TRAINING, given)
        write(own.result_dir, measure(own, experiment, evaluation))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


def measure(own: argparse.Namespace, experiment: Experiment, evaluation: EvaluationConfig) -> dict[str, Any]:
    """Trains and, if --eval_data is given, evaluates: during training with --eval_steps, otherwise after it.

    Returns:
      dict, see `result`, with `evaluation_seconds` and `learning_rate` in addition.
    """
    from towers import gpus_of, in_towers

    from ctr_trainer.checkpoint.evaluations import EvaluationHistory
    from ctr_trainer.commands.experiment import build
    from ctr_trainer.data.reader import BatchReader
    from ctr_trainer.ranks import distributed

    data, towers = experiment.data, own.towers
    build.start_workers(experiment, own.core_shares, (gpus_of(towers) if towers > 1 else 0) or 1)
    if data.train_data:
        experiment = build.with_label_rates(experiment)
    estimator = build.make_estimator(experiment)
    if towers > 1:
        estimator.model_fn = in_towers(estimator.model_fn, towers)

    def train_input_fn(position: Any) -> Any:
        if not data.train_data:
            return W1Batches(data.batch_size, None, distributed.rank(), own.distinct, own.exponent)
        return build.training_reader(experiment, position)

    def eval_input_fn() -> BatchReader:
        return build.reader(experiment, data.eval_data, once=True)

    eval_spec = build.make_eval_spec(evaluation, eval_input_fn)
    trained = estimator.train(train_input_fn, max_steps=data.max_steps, evaluation=eval_spec).last_training
    assert trained is not None  # A new model directory has steps to train.
    evaluations, evaluation_seconds = [], trained["phase_seconds"]["evaluation"]["mean"]
    if eval_spec:
        evaluations = EvaluationHistory.load(experiment.model.model_dir).evaluations
    elif data.eval_data:
        start = time.perf_counter()
        evaluated = estimator.evaluate(eval_input_fn, group_by=evaluation.group_by)
        evaluation_seconds += time.perf_counter() - start
        evaluations = [{"step": evaluated["global_step"], **evaluated}]
    training = experiment.train
    found = result(distributed.rank(), trained, evaluations, data.batch_size * training.accumulation_steps)
    scale = distributed.lr_scale(training.scale_lr, training.accumulation_steps)
    if evaluations and distributed.is_chief():
        found["training_accuracy"] = training_accuracy(experiment.model.model_dir)
    return {**found, "evaluation_seconds": evaluation_seconds, "learning_rate": training.learning_rate * scale}


def result(
    rank: int, trained: Mapping[str, Any], evaluations: list[dict[str, Any]], examples_per_step: int
) -> dict[str, Any]:
    """Returns a worker's results, from the result of `Estimator.train`, see `TrainResult`, and of each evaluation.

    `examples_per_sec` is of this rank over the measured steps, without the time of evaluations. `training_auc` covers
    the training examples of all ranks, each scored before the update that uses it; the other metrics are of the last
    evaluation. What was not measured is left out. With several labels, each metric is the mean over the labels.
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
        "evaluations": [{"step": each["step"], **_mean_of_labels(each, ("auc", "accuracy"))} for each in evaluations],
    }


def training_accuracy(model_dir: str) -> float:
    """Returns the accuracy over the training examples, each scored before it is trained on; NaN without a label."""
    lines = [json.loads(line) for line in pathlib.Path(model_dir, METRICS_FILE).read_text().splitlines()]
    steps = [after["step"] - before["step"] for before, after in itertools.pairwise(lines)]
    accuracies = [_mean_of_labels(line, ("accuracy",)).get("accuracy", math.nan) for line in lines[1:]]
    return sum(map(operator.mul, accuracies, steps)) / max(sum(steps), 1)


def _mean_of_labels(metrics: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Returns the metrics with these names; with several labels, `auc` is the mean of `auc/click`, `auc/buy` ...."""
    found = {}
    for name in names:
        values = [value for key, value in metrics.items() if key.partition("/")[0] == name]
        if values:
            found[name] = statistics.fmean(values)
    return found


if __name__ == "__main__":
    main()
