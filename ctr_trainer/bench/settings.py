"""What a setting buys and what it costs: speed and AUC in one row."""

import os

from ctr_trainer import autotune, outputs
from ctr_trainer.bench import autotune_search, axes, chart, machine
from ctr_trainer.bench.experiment import equal_examples
from ctr_trainer.bench.jobs import Job, run_rounds, scratch
from ctr_trainer.bench.made_data import with_data
from ctr_trainer.bench.report import write_report
from ctr_trainer.bench.table import cell, figure, format_table
from ctr_trainer.errors import UserError

SUMMARY = "examples/s and AUC for one setting at a time beside the default"
DEFAULT = "default"
ONE_ROUND = "AUC change is not shown for one round, whose seed moves the AUC as well: --rounds=3 has three seeds."


def run(bench, experiment):
    """Measures and reports."""
    names = axes.chosen(bench.axes)
    host = machine.describe()
    experiment = with_data(bench, experiment)
    workers = max(bench.workers)
    jobs = [_job(axes.Variant(DEFAULT), bench, experiment, workers)]
    failed, notes = {}, [axes.NOTES[name] for name in names if name in axes.NOTES]
    for name in names:
        if name == axes.AUTOTUNE:
            jobs += _tuned(bench, experiment, workers, failed, notes)
        else:
            jobs += [_job(variant, bench, experiment, workers) for variant in axes.variants(name, experiment)]
    runs, failures = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout, experiment.training.seed)
    failed |= failures
    if bench.rounds == 1:
        notes.append(ONE_ROUND)
    rows = {job.name: summarize(runs[job.name], runs.get(DEFAULT)) for job in jobs if job.name in runs}
    results = {
        "experiment": experiment.describe(),
        "flags": experiment.flags(evaluate=True),
        "workers": workers,
        "rounds": bench.rounds,
        "settings": {name: {key: each and each.to_dict() for key, each in row.items()} for name, row in rows.items()},
        "notes": notes,
        "failed": failed,
    }
    failures = [f"{name} failed: {error}" for name, error in failed.items()]
    text = lines(rows, notes + failures, bench, experiment, workers)
    rates = {name: row["together"] for name, row in rows.items()}
    charts = {
        "settings.png": lambda path: chart.draw_bars(path, f"{workers} workers", "examples/s together", rates),
        "settings_auc.png": lambda path: chart.draw_points(
            path, "What speed costs", "examples/s together", "AUC", _points(rows)
        ),
    }
    write_report(bench.output, "settings", host, text, results, charts)


def summarize(rounds, default):
    """-> dict of Figures: `together` (examples/s), `speedup` (over the default's of the same round), `auc`, and
    `auc_change` against the default's.

    Args:
      rounds: a list of the ranks' results, a round.
      default: the same of the default; None where that failed.
    """
    rates, aucs = _rates(rounds), [ranks[0]["auc"] for ranks in rounds]
    speedup, change = [None], [None]
    if default:
        speedup = [rate / other for rate, other in zip(rates, _rates(default), strict=True)]
        change = [auc - ranks[0]["auc"] for auc, ranks in zip(aucs, default, strict=True)]
    return {
        "together": figure(rates),
        "speedup": figure(speedup),
        "auc": figure(aucs),
        "auc_change": figure(change),
    }


def _rates(rounds):
    return [sum(rank["examples_per_sec"] for rank in ranks) for ranks in rounds]


def _job(variant, bench, experiment, workers):
    steps, warmup = equal_examples(variant.flags, bench, experiment)
    flags = (*experiment.flags(evaluate=True), *variant.flags)
    return Job(variant.name, workers, flags, steps, warmup, environment=variant.environment)


def _tuned(bench, experiment, workers, failed, notes):
    """-> the job with Horovod as its own search found it best, in a run that is not measured; [] if that failed.

    Args:
      failed: dict of name -> error, to add to.
      notes: list of lines, to add to.
    """
    log = os.path.abspath(outputs.claim(bench.output, ["autotune.csv"])["autotune.csv"])
    search = _job(
        axes.Variant("autotune search", (*autotune_search.flags(log), "--eval_data="), autotune_search.pace()),
        bench,
        experiment,
        workers,
    )
    try:
        with scratch(bench.output) as directory:
            search.run(os.path.join(directory, "autotune"), bench.job_timeout)
        found = autotune.best_row(log)
    except UserError as error:
        failed[axes.AUTOTUNE] = str(error)
        return []
    notes.append(f"autotune found {autotune.format_row(found)}: --autotune_log={log}")
    return [_job(axes.Variant(axes.AUTOTUNE, (f"--autotune_log={log}",)), bench, experiment, workers)]


def lines(rows, notes, bench, experiment, workers):
    """-> the report, a list of lines.

    Args:
      rows: by the setting's name, what `summarize` found.
      notes: lines to end with.
      bench: BenchFlags.
      experiment: `Experiment`.
      workers: of each job.
    """
    columns = {"examples/s together": ("together", ",.0f"), "over default": ("speedup", ".2f"), "AUC": ("auc", ".4f")}
    if bench.rounds > 1:
        columns["AUC change"] = "auc_change", "+.4f"
    headings = ["setting", *columns]
    cells = [[name, *(cell(row[key], form) for key, form in columns.values())] for name, row in rows.items()]
    examples = (bench.steps + bench.trace_steps) * workers
    examples *= experiment.data.batch_size * experiment.training.accumulation_steps
    lines = [
        f"{experiment.describe()}; {workers} worker{'s' * (workers > 1)}; {examples:,} examples a run, then evaluated; "
        f"median (range) of {bench.rounds} round{'s' * (bench.rounds > 1)}, each of another seed, all settings in turn",
        "",
        *format_table(headings, cells),
    ]
    return [*lines, "", *notes] if notes else lines


def _points(rows):
    return {name: (row["together"], row["auc"]) for name, row in rows.items()}
