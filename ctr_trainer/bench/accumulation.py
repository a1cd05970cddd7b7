"""Measures time and AUC for a list of --accumulation_steps."""

import dataclasses
import math
from collections.abc import Sequence

from ctr_trainer.bench import accumulation_table, chart, report
from ctr_trainer.bench.accumulation_table import EXAMPLES, STEP_TITLES, AccumulationSetting
from ctr_trainer.bench.job_flags import described, equal_examples, job_flags, with_data
from ctr_trainer.bench.jobs import Job, run_rounds
from ctr_trainer.bench.report import write_report
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.flags.bench import AccumulationFlags, BenchFlags, ListedExperiment
from ctr_trainer.messages.errors import UserError

SUMMARY = "time and AUC for each of --accumulation_steps=1,2,4,8, at equal examples or equal optimizer steps"
_DEFAULT_BATCHES = (1, 2, 4, 8)


def run(bench: BenchFlags, experiment: Experiment, flags: AccumulationFlags, listed: ListedExperiment) -> None:
    """Measures and reports.

    Args:
      bench: flags of all benchmarks.
      experiment: the experiment with one batch a step.
      flags: flags of this benchmark.
      listed: the experiment whose --accumulation_steps are compared.
    """
    host, workers = report.describe(), max(bench.workers)
    chosen = settings(listed.train.accumulation_steps, flags.equal, bench, experiment)
    measured = list(dict.fromkeys(setting for own in chosen.values() for setting in own))
    # Data that is made has a row for each example of the longest run: overfitting would lower the AUC as well.
    rows = max(bench.rows, *(setting.examples for setting in measured))
    experiment = with_data(dataclasses.replace(bench, rows=rows), experiment)
    jobs = [job(setting, experiment, workers, flags.evaluations) for setting in measured]
    runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout, experiment.run.seed)
    tables = {equal: accumulation_table.rows(own, runs) for equal, own in chosen.items()}
    changes = accumulation_table.auc_changes(
        {equal: {row.setting.batches: row.figures["auc"] for row in own} for equal, own in tables.items()}
    )
    results = {
        "experiment": described(experiment),
        "flags": job_flags(experiment, evaluate=True),
        "workers": workers,
        "rounds": bench.rounds,
        "equal": {equal: [row.to_dict() for row in own] for equal, own in tables.items()},
        "auc_change": {
            batches: {name: value.to_dict() for name, value in own.items()} for batches, own in changes.items()
        },
        "failed": failed,
    }
    lines = [
        f"{described(experiment)}; {workers} worker{'s' * (workers > 1)}; --scale_lr={experiment.train.scale_lr}; "
        f"median (range) of {bench.rounds} round{'s' * (bench.rounds > 1)}, each of another seed, all runs in turn",
        *accumulation_table.lines(tables, changes, bench.rounds),
        *(f"{name} failed: {error}" for name, error in failed.items()),
    ]
    points = {row.setting.name: (row.figures["seconds"], row.figures["auc"]) for own in tables.values() for row in own}
    charts = {
        "accumulation.png": lambda path: chart.draw_points(
            path, "What accumulation saves and costs", "seconds", "validation AUC", points
        )
    }
    write_report(bench.output, "accumulation", host, lines, results, charts)


def settings(
    batches: Sequence[int], equal: Sequence[str], bench: BenchFlags, experiment: Experiment
) -> dict[str, list[AccumulationSetting]]:
    """Returns the settings to measure, by what they have as many of. One batch a step comes first.

    Args:
      batches: --accumulation_steps, where 0 means 1; () for the default.
      equal: --equal.
      bench: flags of all benchmarks.
      experiment: the experiment with one batch a step.

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
