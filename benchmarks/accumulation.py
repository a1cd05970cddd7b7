"""Measures time and AUC for a list of --accumulation_steps, at equal numbers of examples.

K batches a step make one K-th of the optimizer steps. One batch a step is always measured. Without --train_data,
synthetic data are made. Learning rates stay the same, unless `--scale_lr=linear_batches` or `sqrt_batches` is given.
The last line is JSON.

Example: python benchmarks/accumulation.py --accumulation_steps=1,2,4,8 -- --scale_lr=sqrt_batches
"""

import dataclasses
import math
import tempfile
from collections.abc import Mapping
from typing import Any

import figures
import jobs
import sides
from figures import Figure, figure
from jobs import Job, Rounds, Runs, Setup, rate

EVALUATIONS = 5  # Evaluations of each run, evenly spaced; the last one is at its end.
_OF_RUN = ("learning_rate", "training_auc", "training_accuracy", "accuracy", "auc", "logloss", "copc")
_COLUMNS = (
    *(("batches a step", "accumulation_steps", "d"), ("batch size", "batch_size", ",d")),
    *(("steps", "optimizer_steps", ",d"), ("examples", "examples", ",d"), ("learning rate", "learning_rate", "g")),
    *(("seconds", "seconds", ",.1f"), ("with evaluations", "seconds_with_evaluations", ",.1f")),
    *(("examples/s", "together", ",.0f"), ("over the row above, percent", "gain_percent", "+.0f")),
    *(("training AUC", "training_auc", ".4f"), ("training accuracy", "training_accuracy", ".4f")),
    *(("accuracy", "accuracy", ".4f"), ("best accuracy", "best_accuracy", ".4f"), ("validation AUC", "auc", ".4f")),
    *(("AUC change", "auc_change", "+.4f"), ("best in the run", "best_auc", ".4f"), ("best so far", "mark", "")),
    *(("log loss", "logloss", ".4f"), ("COPC", "copc", ".3f")),
)


def job(batches: int, workers: int, setup: Setup) -> Job:
    """Returns the job of a number of batches per step, with its evaluations."""
    made = setup.job(f"{batches} batches a step", workers, (f"--accumulation_steps={batches}",))
    every = math.ceil((made.steps + made.warmup) / EVALUATIONS)
    return dataclasses.replace(made, flags=(*made.flags, f"--eval_steps={every}"))


def summarize(rounds: Rounds, examples: int) -> dict[str, Any]:
    """Returns the figures of a row whose runs train on `examples` examples.

    `together` is examples/s, and `seconds` is the time for all examples at that rate. On the validation data,
    `best_auc` and `best_accuracy` are the maxima over all evaluations; the other metrics are of the last evaluation.
    `evaluations` has, for each round, the step and the metrics of each evaluation.
    """
    firsts = [ranks[0] for ranks in rounds]
    seconds = [examples / rate(ranks) for ranks in rounds]
    evaluated = (own + first["evaluation_seconds"] for own, first in zip(seconds, firsts, strict=True))
    return {
        "seconds": figure(seconds),
        "seconds_with_evaluations": figure(evaluated),
        "together": figure(map(rate, rounds)),
        **{
            f"best_{name}": figure(max(each[name] for each in first["evaluations"]) for first in firsts)
            for name in ("auc", "accuracy")
        },
        **{name: figure(first[name] for first in firsts) for name in _OF_RUN},
        "evaluations": [first["evaluations"] for first in firsts],
    }


def table_rows(every: Mapping[int, Job], runs: Runs, batch_examples: int) -> list[dict[str, Any]]:
    """Returns the rows of the jobs that did not fail, by batches per step; `runs` has their results by the job's name.

    A batch of all workers has `batch_examples` examples. `gain_percent` compares a row with the previous one.
    `best_so_far` says whether the median of the row's best AUC exceeds the medians of all previous rows.
    """
    found: list[dict[str, Any]] = []
    for batches, job in every.items():
        if job.name in runs:
            steps, size = job.steps + job.warmup, batches * batch_examples
            row: dict[str, Any] = {"accumulation_steps": batches, "batch_size": size, "optimizer_steps": steps}
            row |= {"examples": steps * size, **summarize(runs[job.name], steps * size)}
            row["gain_percent"] = figures.gain_percent(row["together"], found[-1]["together"] if found else None)
            row["best_so_far"] = all(row["best_auc"].median > other["best_auc"].median for other in found)
            found.append(row)
    return found


def auc_changes(rows: list[dict[str, Any]]) -> dict[int, Figure]:
    """Returns the change of the validation AUC against one batch per step in the same round, by batches per step."""
    aucs = {row["accumulation_steps"]: row["auc"].values for row in rows}
    return {
        batches: Figure(tuple(own - one for own, one in zip(values, aucs[1], strict=True)))
        for batches, values in aucs.items()
        if batches > 1 and 1 in aucs
    }


def main(arguments: list[str] | None = None) -> None:
    parser = jobs.parser(__doc__, rows=600_000)
    parser.add_argument("--workers", type=int, default=2, help="number of workers; default 2")
    about = "numbers of batches per step; default 1,2,4,8"
    parser.add_argument("--accumulation_steps", type=sides.integers, default=[1, 2, 4, 8], help=about)
    flags, on = parser.parse_args(arguments), figures.machine()
    with tempfile.TemporaryDirectory() as directory:
        setup = jobs.setup_with_data(flags, directory)
        numbers = sorted({1, *(max(number, 1) for number in flags.accumulation_steps)})
        every = {batches: job(batches, flags.workers, setup) for batches in numbers}
        runs, failed = setup.measure([*every.values()])
    rows = table_rows(every, runs, flags.workers * setup.experiment.data.batch_size)
    changes, title = auc_changes(rows), setup.title(flags.workers)
    results = {
        "experiment": title,
        "flags": setup.flags,
        "workers": flags.workers,
        "rounds": setup.rounds,
        "equal": {"examples": rows},
        "auc_change": {batches: {"examples": change} for batches, change in changes.items()},
    }
    shown = [{**row, "mark": "*" if row["best_so_far"] else None} for row in rows]
    for row in shown:
        row["auc_change"] = changes.get(row["accumulation_steps"]) if setup.rounds > 1 else None
    lines = [f"{title}; --scale_lr={setup.experiment.train.scale_lr}", "", *sides.markdown(_COLUMNS, shown)]
    lines += ["", "Training AUC and accuracy cover the training examples, each scored before it is trained on."]
    figures.report("accumulation", on, [*lines, *[figures.ONE_ROUND] * (setup.rounds == 1)], results, failed)


if __name__ == "__main__":
    main()
