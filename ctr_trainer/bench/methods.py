"""Compares the ways to train on two devices: the time that each saves compared with one worker, and its AUC."""

import dataclasses
from collections.abc import Mapping, Sequence

from ctr_trainer.bench import chart, report
from ctr_trainer.bench.job_flags import BenchFlags, described, job_flags, with_data
from ctr_trainer.bench.jobs import Job, Rounds, rate, run_rounds
from ctr_trainer.bench.report import ONE_ROUND, Figure, cell, figure, gains, write_report
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.reports.comparison import format_table

SUMMARY = "time and validation AUC of one process, one with two devices, two processes, and two with accumulation"
ONE = "one worker"
_DEVICES = 2
_ACCUMULATION_STEPS = 5
_LEAST_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
      name: name in the table.
      workers, towers: number of processes, and of devices that one process drives.
      batches: number of batches of one worker that make up a step of all devices.
      flags: flags of `train` in addition to the experiment's flags.
    """

    name: str
    workers: int
    towers: int
    batches: int
    flags: tuple[str, ...] = ()


def run(bench: BenchFlags, experiment: Experiment) -> None:
    """Measures and reports."""
    host = report.describe()
    experiment = with_data(bench, experiment)
    chosen = methods(experiment)
    jobs = [_job(method, bench, experiment) for method in chosen]
    runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout, experiment.run.seed)
    examples = (bench.steps + bench.trace_steps) * experiment.data.batch_size
    rows = with_gains(
        {job.name: summarize(runs[job.name], runs.get(ONE), examples) for job in jobs if job.name in runs}
    )
    results = {
        "experiment": described(experiment),
        "flags": job_flags(experiment, evaluate=True),
        "rounds": bench.rounds,
        "examples": examples,
        "methods": rows,
        "batch_sizes": {method.name: method.batches * experiment.data.batch_size for method in chosen},
    }
    lines = _lines(rows, chosen, bench, experiment, examples)
    seconds = {name: row["seconds"] for name, row in rows.items()}
    charts = {"methods.png": lambda path: chart.draw_bars(path, f"{examples:,} examples", "seconds", seconds)}
    write_report(bench.output, "methods", host, lines, results, charts, failed)


def methods(experiment: Experiment) -> list[Method]:
    """Returns the methods, which all train on the same examples; two towers use the learning rates of two workers."""
    training, embedding = experiment.train, experiment.run.embedding
    rates = (
        f"--batch_size={_DEVICES * experiment.data.batch_size}",
        f"--learning_rate={_DEVICES * training.learning_rate:g}",
        f"--embedding_learning_rate={_DEVICES * embedding.learning_rate:g}",
    )
    k = training.accumulation_steps if training.accumulation_steps > 1 else _ACCUMULATION_STEPS
    plain = ("--accumulation_steps=1",)
    return [
        Method(ONE, 1, 1, 1, plain),
        Method("one process, two towers", 1, _DEVICES, _DEVICES, (*plain, *rates)),
        Method("two processes", _DEVICES, 1, _DEVICES, plain),
        Method(f"two processes, {k} batches a step", _DEVICES, 1, _DEVICES * k, (f"--accumulation_steps={k}",)),
    ]


def summarize(rounds: Rounds, alone: Rounds | None, examples: int) -> dict[str, Figure | None]:
    """Returns the figures of a method for `examples` examples.

    `speedup_percent` and `saved_percent` compare with `alone`, one worker in the same round, and are None without it;
    `together` is examples/s; `accuracy` and `auc` are measured on the validation data.
    """
    seconds = [examples / rate(ranks) for ranks in rounds]
    pairs = list(zip(seconds, (examples / rate(ranks) for ranks in alone), strict=True)) if alone else []
    firsts = [ranks[0] for ranks in rounds]
    evaluated = [own + first["evaluation_seconds"] for own, first in zip(seconds, firsts, strict=True)]
    return {
        "seconds": figure(seconds),
        "seconds_with_evaluation": figure(evaluated),
        "together": figure(examples / own for own in seconds),
        "speedup_percent": figure(100 * (one / own - 1) for own, one in pairs),
        "saved_percent": figure(100 * (1 - own / one) for own, one in pairs),
        **{name: figure(first[name] for first in firsts) for name in ("learning_rate", "accuracy", "auc")},
    }


def with_gains(rows: Mapping[str, Mapping[str, Figure | None]]) -> dict[str, dict[str, Figure | None]]:
    """Returns the rows with `gain_percent`, the speed-up over the previous row in the same round."""
    before = [None, *(row["together"] for row in rows.values())]
    return {
        name: {**row, "gain_percent": gains(other, row["together"])}
        for (name, row), other in zip(rows.items(), before, strict=False)
    }


def _job(method: Method, bench: BenchFlags, experiment: Experiment) -> Job:
    warmup = max(round(bench.trace_steps / method.batches), _LEAST_STEPS)
    total = round((bench.steps + bench.trace_steps) / method.batches)
    flags = (*job_flags(experiment, evaluate=True), *method.flags)
    if method.towers > 1:
        flags += (f"--towers={method.towers}",)
    # A device is half of the machine's cores; a process that drives two devices has all cores.
    shares = _DEVICES // method.towers
    return Job(method.name, method.workers, flags, max(total - warmup, warmup), warmup, core_shares=shares)


def _lines(
    rows: Mapping[str, Mapping[str, Figure | None]],
    chosen: Sequence[Method],
    bench: BenchFlags,
    experiment: Experiment,
    examples: int,
) -> list[str]:
    columns = {
        "learning rate": ("learning_rate", "g"),
        "seconds": ("seconds", ",.1f"),
        "with evaluation": ("seconds_with_evaluation", ",.1f"),
        "examples/s": ("together", ",.0f"),
        "speed-up": ("speedup_percent", "+.0f"),
        "over the row above": ("gain_percent", "+.0f"),
        "time saved": ("saved_percent", ".0f"),
        "accuracy": ("accuracy", ".4f"),
        "validation AUC": ("auc", ".4f"),
    }
    sizes = {method.name: f"{method.batches * experiment.data.batch_size:,}" for method in chosen}
    cells = [
        [name, sizes[name], *(_percent(row[key], form, name, key) for key, form in columns.values())]
        for name, row in rows.items()
    ]
    batches = examples // experiment.data.batch_size
    steps = ", ".join(f"{method.name} {batches // method.batches:,}" for method in chosen)
    return [
        f"{described(experiment)}; {examples:,} examples by each method, then evaluated; median (range) of "
        f"{bench.rounds} round{'s' * (bench.rounds > 1)}, each with another seed, all methods in turn",
        "",
        *format_table(["method", "batch size", *columns], cells),
        "",
        f"Optimizer steps: {steps}. Speed-up and time saved are in percent of one worker's time. Over the row above: "
        "the increase of the examples/s in percent. The batch size counts all workers in an optimizer step.",
        *([ONE_ROUND] if bench.rounds == 1 else []),
    ]


def _percent(value: Figure | None, form: str, name: str, key: str) -> str:
    return "-" if name == ONE and key.endswith("percent") else cell(value, form)
