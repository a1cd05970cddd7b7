"""Measures time and AUC for a list of --accumulation_steps."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.bench import chart, report
from ctr_trainer.bench.job_flags import (
    AccumulationFlags,
    BenchFlags,
    ListedExperiment,
    described,
    equal_examples,
    job_flags,
    with_data,
)
from ctr_trainer.bench.jobs import Job, Rounds, Runs, rate, run_rounds
from ctr_trainer.bench.report import Figure, cell, figure, gains, write_report
from ctr_trainer.bench.settings import ONE_ROUND
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.reports.comparison import format_table
from ctr_trainer.system.messages.errors import UserError

EXAMPLES, STEPS, FEWER_STEPS = "examples", "steps", "fewer_steps"
# The titles of the tables, by the quantity that is equal in all rows.
STEP_TITLES = {EXAMPLES: "Equal examples", STEPS: "Equal optimizer steps"}
_CHANGES = {EXAMPLES: "equal examples", STEPS: "equal steps: larger batches", FEWER_STEPS: "fewer steps"}
_BEST = "best_auc"
_OF_RUN = ("learning_rate", "training_auc", "training_accuracy", "accuracy", "auc", "logloss", "copc")
# The heading, figure and format of each column.
_COLUMNS = (
    ("learning rate", "learning_rate", "g"),
    ("seconds", "seconds", ",.1f"),
    ("with evaluations", "seconds_with_evaluations", ",.1f"),
    ("examples/s", "together", ",.0f"),
    ("over the row above", "gain_percent", "+.0f"),
    ("training AUC", "training_auc", ".4f"),
    ("training accuracy", "training_accuracy", ".4f"),
    ("accuracy", "accuracy", ".4f"),
    ("best accuracy", "best_accuracy", ".4f"),
    ("validation AUC", "auc", ".4f"),
    ("best in the run", _BEST, ".4f"),
    ("log loss", "logloss", ".4f"),
    ("COPC", "copc", ".3f"),
)
_NOTES = (
    "Seconds are for all examples of a row at its examples/s, without and with the run's evaluations. Over the row "
    "above: the increase of the examples/s in percent. The batch size counts all workers in an optimizer step. The "
    "training AUC and accuracy are of the training examples, each scored before it is trained on.",
    "--scale_lr=linear_batches and sqrt_batches scale the learning rates with the number of batches per step.",
    "*: the best AUC of this row exceeds the best AUC of all rows above it.",
)
_ABOUT_CHANGES = (
    "Equal examples = larger batches + fewer steps. Larger batches: as many steps as with one batch a step, each on K "
    "batches. Fewer steps: one K-th of these steps compared with all of them."
)
SUMMARY = "time and AUC for each of --accumulation_steps=1,2,4,8, at equal examples or equal optimizer steps"
_DEFAULT_BATCHES = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class AccumulationSetting:
    """The setting that one row measures.

    An optimizer step takes `batches` batches per worker. The first `warmup` steps are not measured. `batch_examples` is
    the number of examples in one batch of all workers.
    """

    batches: int
    steps: int
    warmup: int
    batch_examples: int

    @property
    def optimizer_steps(self) -> int:
        return self.steps + self.warmup

    @property
    def batch_size(self) -> int:
        """Number of examples of all workers in an optimizer step."""
        return self.batches * self.batch_examples

    @property
    def examples(self) -> int:
        """Number of examples of all workers in all steps."""
        return self.optimizer_steps * self.batch_size

    @property
    def name(self) -> str:
        return f"{self.batches} batch{'es' * (self.batches > 1)} a step, {self.optimizer_steps:,} steps"


@dataclasses.dataclass(frozen=True)
class Row:
    """The figures of a setting.

    Attributes:
      setting: the setting.
      figures: see `summarize`; also `gain_percent`, by which the examples/s exceed the previous row's, or None.
      evaluations: for each round, the `step` and the `auc` of each evaluation.
      best_so_far: whether the median of the row's best AUC exceeds the medians of all previous rows.
    """

    setting: AccumulationSetting
    figures: dict[str, Any]
    evaluations: list[list[dict[str, Any]]]
    best_so_far: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns the row for JSON."""
        return {
            "accumulation_steps": self.setting.batches,
            "batch_size": self.setting.batch_size,
            "optimizer_steps": self.setting.optimizer_steps,
            "examples": self.setting.examples,
            **self.figures,
            "best_so_far": self.best_so_far,
            "evaluations": self.evaluations,
        }


def table_rows(settings: Sequence[AccumulationSetting], runs: Runs) -> list[Row]:
    """Returns the rows of the settings whose jobs did not fail; `runs` has their results by the setting's name."""
    found: list[Row] = []
    for setting in settings:
        if setting.name in runs:
            rounds = runs[setting.name]
            figures: dict[str, Any] = {**summarize(rounds, setting.examples)}
            figures["gain_percent"] = gains(found[-1].figures["together"] if found else None, figures["together"])
            best = all(figures[_BEST].median > row.figures[_BEST].median for row in found)
            found.append(Row(setting, figures, [ranks[0]["evaluations"] for ranks in rounds], best_so_far=best))
    return found


def summarize(rounds: Rounds, examples: int) -> dict[str, Figure]:
    """Returns the figures of a row whose runs train on `examples` examples.

    `together` is examples/s, and `seconds` is the time for all examples at that rate. On the validation data,
    `best_auc` and `best_accuracy` are the maxima over all evaluations; the other metrics are of the last evaluation.
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
    }


def auc_changes(aucs: Mapping[str, Mapping[int, Figure]]) -> dict[int, dict[str, Figure]]:
    """Returns the changes of the validation AUC compared with one batch per step in the same round.

    Args:
      aucs: dict of equal quantity -> dict of batches per step -> AUC.

    Returns:
      dict of batches per step -> dict of equal quantity -> change; if both changes are known, also their difference,
      `fewer_steps`.
    """
    found: dict[int, dict[str, Figure]] = {}
    for equal, own in aucs.items():
        for batches in sorted(own if 1 in own else ()):
            if batches > 1:
                found.setdefault(batches, {})[equal] = _difference(own[batches], own[1])
    for changes in found.values():
        if EXAMPLES in changes and STEPS in changes:
            changes[FEWER_STEPS] = _difference(changes[EXAMPLES], changes[STEPS])
    return found


def _difference(first: Figure, second: Figure) -> Figure:
    return figure(a - b for a, b in zip(first.values, second.values, strict=True))


def report_lines(
    tables: Mapping[str, Sequence[Row]], changes: Mapping[int, Mapping[str, Figure]], rounds: int
) -> list[str]:
    """Returns the lines of the report: the tables, then the changes of the AUC if there were several rounds."""
    text: list[str] = []
    for equal, own in tables.items():
        headings = ["batches a step", "batch size", "steps", "examples", *(heading for heading, *_ in _COLUMNS)]
        text += ["", f"{STEP_TITLES[equal]}:", *format_table(headings, [_cells(row) for row in own])]
    text += ["", *_NOTES]
    if rounds == 1:
        return [*text, ONE_ROUND]
    names = [name for name in _CHANGES if any(name in own for own in changes.values())]
    cells = [[str(k), *(cell(own.get(name), "+.4f") for name in names)] for k, own in changes.items()]
    if cells:
        text += ["", "Change of the validation AUC against one batch a step, in the same round:"]
        text += format_table(["batches a step", *(_CHANGES[name] for name in names)], cells)
    return [*text, _ABOUT_CHANGES] if FEWER_STEPS in names else text


def _cells(row: Row) -> list[str]:
    setting = row.setting
    numbers = (setting.batch_size, setting.optimizer_steps, setting.examples)
    cells = [str(setting.batches), *(f"{number:,}" for number in numbers)]
    for _, name, form in _COLUMNS:
        text = cell(row.figures[name], form)
        cells.append(text + (" *" if row.best_so_far else "  ") if name == _BEST else text)
    return cells


def run(bench: BenchFlags, experiment: Experiment, flags: AccumulationFlags, listed: ListedExperiment) -> None:
    """Measures and reports; `experiment` has one batch per step, and `listed` has the numbers to compare."""
    host, workers = report.describe(), max(bench.workers)
    chosen = settings(listed.train.accumulation_steps, flags.equal, bench, experiment)
    measured = list(dict.fromkeys(setting for own in chosen.values() for setting in own))
    # Generated data has a row for each example of the longest run, as repeated rows would lower the AUC by overfitting.
    rows = max(bench.rows, *(setting.examples for setting in measured))
    experiment = with_data(dataclasses.replace(bench, rows=rows), experiment)
    jobs = [job(setting, experiment, workers, flags.evaluations) for setting in measured]
    runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout, experiment.run.seed)
    tables = {equal: table_rows(own, runs) for equal, own in chosen.items()}
    aucs = {equal: {row.setting.batches: row.figures["auc"] for row in own} for equal, own in tables.items()}
    changes = auc_changes(aucs)
    results = {
        "experiment": described(experiment),
        "flags": job_flags(experiment, evaluate=True),
        "workers": workers,
        "rounds": bench.rounds,
        "equal": {equal: [row.to_dict() for row in own] for equal, own in tables.items()},
        "auc_change": changes,
    }
    lines = [
        f"{described(experiment)}; {workers} worker{'s' * (workers > 1)}; --scale_lr={experiment.train.scale_lr}; "
        f"median (range) of {bench.rounds} round{'s' * (bench.rounds > 1)}, each with another seed, all runs in turn",
        *report_lines(tables, changes, bench.rounds),
    ]
    points = {row.setting.name: (row.figures["seconds"], row.figures["auc"]) for own in tables.values() for row in own}
    title = "What accumulation saves and costs"
    charts = {"accumulation.png": lambda path: chart.draw_points(path, title, "seconds", "validation AUC", points)}
    write_report(bench.output, "accumulation", host, lines, results, charts, failed)


def settings(
    batches: Sequence[int], equal: Sequence[str], bench: BenchFlags, experiment: Experiment
) -> dict[str, list[AccumulationSetting]]:
    """Returns the settings to measure, by the quantity that is equal. One batch per step comes first.

    `batches` is --accumulation_steps, where 0 means 1; () selects the default.

    Raises:
      UserError: --equal is empty or has an unknown name.
    """
    if not equal or set(equal) - set(STEP_TITLES):
        raise UserError(f"--equal={','.join(equal)}: expected {' or '.join(STEP_TITLES)}, or both, comma separated")
    batch_examples = max(bench.workers) * experiment.data.batch_size

    def setting(number: int, name: str) -> AccumulationSetting:
        steps, warmup = bench.steps, bench.trace_steps
        if name == EXAMPLES:
            steps, warmup = equal_examples((f"--accumulation_steps={number}",), bench, experiment)
        return AccumulationSetting(number, steps, warmup, batch_examples)

    numbers = sorted({1, *(max(number, 1) for number in batches or _DEFAULT_BATCHES)})
    return {name: [setting(number, name) for number in numbers] for name in STEP_TITLES if name in equal}


def job(setting: AccumulationSetting, experiment: Experiment, workers: int, evaluations: int) -> Job:
    """Returns the job of a setting, with its evaluations evenly spaced."""
    every = math.ceil(setting.optimizer_steps / evaluations)
    own = (f"--accumulation_steps={setting.batches}", f"--eval_steps={every}")
    flags = (*job_flags(experiment, evaluate=True), *own)
    return Job(setting.name, workers, flags, setting.steps, setting.warmup)
