"""Measures a job on several machines with a limited network. The machines are network namespaces on this machine."""

import functools
import math
import os
import pathlib
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ctr_trainer.bench import chart, namespaces, network_columns, network_job, report
from ctr_trainer.bench.job_flags import (
    AUTOTUNE_LEAST_STEPS,
    BenchFlags,
    NetworkFlags,
    autotune_flags,
    autotune_pace,
    described,
    equal_examples,
    job_flags,
)
from ctr_trainer.bench.jobs import Job, Runs, require_horovodrun, run_rounds
from ctr_trainer.bench.network_columns import Column
from ctr_trainer.bench.network_job import NetworkJob
from ctr_trainer.bench.reference_networks import (
    CONVOLUTION,
    CONVOLUTION_TEXT,
    ONE_MACHINE,
    PARAMS,
    REFERENCE_TEXT,
    describe,
    networks,
    reference_percent,
    without_divisor,
)
from ctr_trainer.bench.report import ONE_ROUND, Figure, cell, write_report
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.reports.comparison import format_table
from ctr_trainer.ranks import autotune
from ctr_trainer.system.messages.errors import UserError

SUMMARY = "one job on --machines=4 with --gbit=2.5,5 between them, simulated on this machine (needs root)"
ALONE = "one worker"
SEARCHING, TUNED = "searching", "tuned"
AUTOTUNE = "autotune"
_ACCUMULATION_STEPS = 5
# The names of `--ways` except autotune, which selects two ways: the search, and a job with its best settings.
WAYS = {
    "plain": (),
    "fp16": ("--fp16_allreduce", "--dense_exchange=horovod"),
    "accumulation": (f"--accumulation_steps={_ACCUMULATION_STEPS}",),
    "sync": ("--dense_sync_steps=30", "--sync_steps=30"),
}
_WAYS = (*WAYS, AUTOTUNE)
_DEFAULT_WAYS = ("plain", "fp16", AUTOTUNE)
_MEANINGS = {
    **{way: " ".join(flags) or "an allreduce each step" for way, flags in WAYS.items()},
    SEARCHING: "--autotune, while Horovod searches for its best settings",
    TUNED: "--autotune_log, with the best settings of the preceding search",
}
_DEFAULT_GBIT = ("2.5", "5")


def run(bench: BenchFlags, experiment: Experiment, flags: NetworkFlags) -> None:
    """Measures and reports."""
    speeds, ways = _speeds(flags.gbit), _ways(flags.ways)
    names, scale = without_divisor(flags.dense_params)
    towers = networks(names, scale)
    if experiment.run.embedding.service != "auto":
        raise UserError(
            "`bench network` starts its own embedding service on the first machine: leave out --embedding_service"
        )
    if CONVOLUTION in towers and experiment.model.model_params:
        raise UserError(f"--dense_params={CONVOLUTION} replaces the model: leave out --model_params")
    namespaces.require_privileges({**namespaces.PACKAGES, **network_job.SSH_PACKAGES})
    require_horovodrun()
    host, cores = report.describe(), sorted(os.sched_getaffinity(0))
    with namespaces.machines(flags.machines, cores) as machines, tempfile.TemporaryDirectory() as directory:
        with network_job.ssh_daemons(machines, directory) as programs:
            logs: dict[tuple[str, str], pathlib.Path] = {}
            jobs: list[Job] = []
            for tower, own in towers.items():
                make = functools.partial(_job, tower, own, bench, experiment)
                shares = max(flags.machines, len(cores))
                jobs += [make("alone", 1, core_shares=shares), make(ONE_MACHINE, flags.machines)]
                for place, gbit in speeds.items():
                    log = logs[tower, place] = pathlib.Path(directory, f"{tower}-{gbit:g}.csv")
                    for way in ways:
                        job = make(f"{place} {way}", flags.machines, **_of_way(way, log))
                        jobs.append(NetworkJob(**vars(job), machines=machines, gbit=gbit, programs=programs))
            runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout)
        tuned = _best_rows(logs) if TUNED in ways else {}
    found = {tower: summarize(tower, runs, speeds, ways) for tower in towers}
    columns = {tower: _columns(tower, runs, speeds, ways, bench, experiment) for tower in towers}
    trained = described(experiment, describe(names, experiment.model.model))
    notes = [
        *(f"  {way}: {_MEANINGS[way]}" for way in ways),
        *(
            f"{tower}, {place}: Horovod was fastest with {autotune.format_row(row)}"
            for (tower, place), row in tuned.items()
        ),
    ]
    lines = [
        f"{trained}; {flags.machines} machines with one core each; {bench.steps} steps per run; "
        f"{bench.rounds} round{'s' * (bench.rounds > 1)}, all jobs in turn",
        *_tables(found, columns, flags.machines),
        "",
        *notes,
        *_about(found, bench, experiment, scale),
    ]
    if flags.machines > host["cores"]:
        lines.append(
            f"{flags.machines} machines share {host['cores']} cores here, so more machines do not compute faster."
        )
    results = {
        "experiment": trained,
        "machines": flags.machines,
        "towers": {tower: list(each) for tower, each in towers.items()},
        "scale": scale,
        "rounds": bench.rounds,
        "steps": bench.steps,
        "time_percent": found,
        "columns": {
            tower: {" ".join(key).strip(): column for key, column in own.items()} for tower, own in columns.items()
        },
        "autotune": {" ".join(key): row for key, row in tuned.items()},
        "exchange_ms": network_columns.exchange_ms(runs),
    }
    charts = {f"network_{tower}.png": functools.partial(_draw, tower=tower, rows=found[tower]) for tower in towers}
    write_report(bench.output, "network", host, lines, results, charts, failed)


def _job(
    tower: str,
    tower_flags: tuple[str, ...],
    bench: BenchFlags,
    experiment: Experiment,
    name: str,
    workers: int,
    more: tuple[str, ...] = (),
    least_steps: int = 0,
    core_shares: int = 0,
    environment: tuple[tuple[str, str], ...] = (),
) -> Job:
    """Returns a job with a tower's flags and `more` flags, of at least `least_steps` steps."""
    steps, warmup = equal_examples(more, bench, experiment)
    flags = (*job_flags(experiment), *tower_flags, *more)
    return Job(f"{tower} {name}", workers, flags, max(steps, least_steps), warmup, core_shares, environment)


def _of_way(way: str, log: pathlib.Path) -> dict[str, Any]:
    """Returns the arguments of `_job` for a way. The way SEARCHING writes the log, TUNED reads it."""
    if way == SEARCHING:
        return dict(more=autotune_flags(log), least_steps=AUTOTUNE_LEAST_STEPS, environment=autotune_pace())
    return dict(more=(f"--autotune_log={log}", "--dense_exchange=horovod") if way == TUNED else WAYS[way])


def summarize(
    tower: str, runs: Runs, places: Iterable[str], ways: Sequence[str]
) -> dict[str, dict[str, Figure | None]]:
    """Returns the time for equal data in percent of one worker's time in the same round.

    Returns:
      dict of place (`one machine`, or a speed such as `5 Gbit`) -> dict of way -> percent; None if a job failed.
    """

    def percent(name: str) -> Figure | None:
        return network_columns.time_percent(runs.get(f"{tower} {name}"), runs.get(f"{tower} alone"))

    rows = {ONE_MACHINE: {"plain": percent(ONE_MACHINE)}}
    return rows | {place: {way: percent(f"{place} {way}") for way in ways} for place in places}


def _columns(
    tower: str, runs: Runs, speeds: Mapping[str, float], ways: Sequence[str], bench: BenchFlags, experiment: Experiment
) -> dict[tuple[str, str], Column]:
    """Returns the columns of the jobs that did not fail, by (place, way)."""
    batches = experiment.train.accumulation_steps
    examples = (bench.steps + bench.trace_steps) * batches * experiment.data.batch_size
    alone = runs.get(f"{tower} alone")
    names = {(ALONE, ""): "alone", (ONE_MACHINE, ""): ONE_MACHINE}
    names |= {(place, way): f"{place} {way}" for place in speeds for way in ways}
    return {
        (place, way): network_columns.measure(
            runs[f"{tower} {name}"],
            alone,
            examples,
            interface=namespaces.INTERFACE if way else "lo",
            batches=_ACCUMULATION_STEPS if way == "accumulation" else batches,
            gbit=speeds.get(place, 0.0),
        )
        for (place, way), name in names.items()
        if f"{tower} {name}" in runs
    }


def _best_rows(logs: Mapping[tuple[str, str], pathlib.Path]) -> dict[tuple[str, str], dict[str, float]]:
    """Returns the best settings found in the last round by (tower, place), except for searches that failed."""
    found = {}
    for key, log in logs.items():
        try:
            found[key] = autotune.best_row(str(log))
        except UserError:  # The job failed, and the report has its error.
            continue
    return found


def _tables(
    found: Mapping[str, Mapping[str, Mapping[str, Figure | None]]],
    columns: Mapping[str, Mapping[tuple[str, str], Column]],
    machines: int,
) -> list[str]:
    lines = []
    for tower, own in columns.items():
        lines += ["", f"{tower}, medians:", *network_columns.table(own)]
    lines += ["", "Time for equal data, in percent of one worker's time; median (range)."]
    for tower, rows in found.items():
        shown = list(dict.fromkeys(way for row in rows.values() for way in row))
        table = []
        for place, row in rows.items():
            cells = (cell(row.get(way), ".0f") for way in shown)
            table.append([place, *cells, reference_percent(tower, place, machines)])
        lines += ["", f"{tower}:", *format_table(["", *shown, "reference"], table)]
    return lines


def _about(towers: Collection[str], bench: BenchFlags, experiment: Experiment, scale: float) -> list[str]:
    lines = [
        f"Total time is for the {(bench.steps + bench.trace_steps) * experiment.train.accumulation_steps} batches "
        "of one worker, divided among all workers. Receiving and sending are means over the machines; for jobs on one "
        "machine, they are the traffic of its loopback interface.",
    ]
    if any(tower in PARAMS for tower in towers):
        lines += REFERENCE_TEXT
    if CONVOLUTION in towers:
        lines.append(CONVOLUTION_TEXT)
    if any(tower in PARAMS or tower == CONVOLUTION for tower in towers):
        lines.append(f"Parameters are divided by {scale:g}.")
    return [*lines, ONE_ROUND] if bench.rounds == 1 else lines


def _draw(path: str, tower: str, rows: Mapping[str, Mapping[str, Figure | None]]) -> None:
    bars = {f"{place}, {way}": value for place, row in rows.items() for way, value in row.items()}
    chart.draw_bars(path, f"Time for equal data, {tower}", "percent of one worker's time", bars)


def _speeds(texts: Sequence[str]) -> dict[str, float]:
    """Returns the speeds in Gbit/s by the name of the place, such as `5 Gbit`."""
    speeds = {}
    for text in texts or _DEFAULT_GBIT:
        try:
            gbit = float(text)
        except ValueError:
            gbit = -1.0
        if not 0 <= gbit < math.inf:
            raise UserError(f"--gbit={text}: expected Gbit/s, comma separated, such as 2.5,5; 0 for no limit")
        speeds[f"{gbit:g} Gbit"] = gbit
    return speeds


def _ways(names: Sequence[str]) -> list[str]:
    """Returns the ways to measure; autotune is replaced by SEARCHING and TUNED."""
    wrong = [name for name in names if name not in _WAYS]
    if wrong:
        raise UserError(f"--ways={','.join(names)}: unknown {', '.join(wrong)}, expected {', '.join(_WAYS)}")
    chosen = names or _DEFAULT_WAYS
    return [way for name in chosen for way in ((SEARCHING, TUNED) if name == AUTOTUNE else (name,))]
