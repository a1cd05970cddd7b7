"""Measures the speed and the phases of a step for several numbers of workers."""

import dataclasses
from collections.abc import Iterable
from statistics import fmean

from ctr_trainer.bench import chart, report
from ctr_trainer.bench.job_flags import BenchFlags, described, job_flags
from ctr_trainer.bench.jobs import Job, Rounds, rate, run_rounds
from ctr_trainer.bench.report import Figure, cell, figure, write_report
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.reports.comparison import format_table
from ctr_trainer.system.measuring.clock import STEP_TITLES

SUMMARY = "examples/s, efficiency and the phases of a step for --workers=1,2,..."
_WAYS = ("received", "sent")


@dataclasses.dataclass(frozen=True)
class Size:
    """The figures for one number of workers.

    Attributes:
      job_seconds: time from the start of the job's processes to their end.
      batch_ms: time of a worker's step divided by the number of batches per step.
      together: examples/s of all workers.
      each: examples/s of one worker.
      efficiency: `together` divided by the number of workers times the examples/s of one worker in the same round; None
        without a measurement of one worker.
      phases_ms: dict of phase -> its time in a step; mean over the workers.
      accounted: share of the step that the phases add up to; minimum over the workers.
      cpu: number of cores that the processes of all workers used.
      network: dict of interface -> bytes/s `received` and `sent`, as counted on the machine of rank 0.
      service_cpu: number of cores that the services used; None without a service.
      service_requests: requests/s that the services answered; None without a service.
      resident_bytes: the most memory that a worker used.
      service_resident_bytes: memory of all services at the end; None without a service.
      gpu_busy: share of the time in which the workers' GPUs were busy; None without GPUs.
      gpu_bytes: the most memory in use on one GPU; None without GPUs.
    """

    job_seconds: Figure
    batch_ms: Figure
    together: Figure
    each: Figure
    efficiency: Figure | None
    phases_ms: dict[str, Figure]
    accounted: Figure
    cpu: Figure
    network: dict[str, dict[str, Figure]]
    service_cpu: Figure | None
    service_requests: Figure | None
    resident_bytes: Figure
    service_resident_bytes: Figure | None
    gpu_busy: Figure | None
    gpu_bytes: Figure | None


def run(bench: BenchFlags, experiment: Experiment) -> None:
    """Measures and reports."""
    host = report.describe()
    sizes = sorted({1, *bench.workers})  # One worker is always measured, for the efficiency.
    flags = job_flags(experiment)
    jobs = [
        Job(f"{n} workers" if n > 1 else "1 worker", n, flags, bench.steps, bench.trace_steps, core_shares=sizes[-1])
        for n in sizes
    ]
    runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout)
    batches = experiment.train.accumulation_steps
    found = {job.workers: summarize(runs[job.name], runs.get("1 worker"), batches) for job in jobs if job.name in runs}
    lines = _lines(found, bench, experiment, host["cores"])
    results = {
        "experiment": described(experiment),
        "flags": flags,
        "rounds": bench.rounds,
        "steps": bench.steps,
        "sizes": found,
    }
    charts = {
        "scaling.png": lambda path: _draw_rates(path, found),
        "scaling_phases.png": lambda path: _draw_phases(path, found),
    }
    write_report(bench.output, "scaling", host, lines, results, charts, failed)


def summarize(rounds: Rounds, alone: Rounds | None, batches: int = 1) -> Size:
    """Returns the figures for one number of workers, whose steps have `batches` batches each.

    `alone` has the results of one worker; None if its job failed.
    """
    workers = len(rounds[0])
    pairs = list(zip(rounds, alone, strict=True)) if alone else []
    phases = dict.fromkeys(name for ranks in rounds for rank in ranks for name in rank["phases"]["seconds"])
    loads = [ranks[0]["load"] for ranks in rounds]
    services = [load.get("service", {}) for load in loads]
    helds = [ranks[0]["held"] for ranks in rounds]
    gpus = [held["gpu"] for held in helds]
    interfaces = sorted({name for load in loads for name in load["network"]})
    return Size(
        job_seconds=figure(ranks[0]["job_seconds"] for ranks in rounds),
        batch_ms=figure(1000 * fmean(rank["phases"]["step_seconds"] for rank in ranks) / batches for ranks in rounds),
        together=figure(map(rate, rounds)),
        each=figure(rate(ranks) / workers for ranks in rounds),
        efficiency=figure(rate(ranks) / (workers * rate(one)) for ranks, one in pairs),
        phases_ms={
            name: figure(1000 * fmean(rank["phases"]["seconds"].get(name, 0.0) for rank in ranks) for ranks in rounds)
            for name in phases
        },
        accounted=figure(min(rank["phases"]["accounted"] for rank in ranks) for ranks in rounds),
        cpu=figure(sum(rank["load"]["cpu"] for rank in ranks) for ranks in rounds),
        network={
            name: {way: figure(load["network"].get(name, {}).get(way, 0.0) for load in loads) for way in _WAYS}
            for name in interfaces
        },
        service_cpu=figure(service.get("cpu") for service in services),
        service_requests=figure(service.get("requests") for service in services),
        resident_bytes=figure(held["resident_bytes"]["max"] for held in helds),
        service_resident_bytes=figure(held["service_resident_bytes"] for held in helds),
        gpu_busy=figure(gpu and gpu["busy"]["mean"] for gpu in gpus),
        gpu_bytes=figure(gpu and gpu["bytes"]["max"] for gpu in gpus),
    )


def _lines(found: dict[int, Size], bench: BenchFlags, experiment: Experiment, cores: int) -> list[str]:
    sizes = list(found.values())

    def row(title: str, name: str, form: str) -> list[str]:
        return [title, *(cell(getattr(size, name), form) for size in sizes)]

    def megabytes(title: str, figures: Iterable[Figure | None], form: str = ",.0f") -> list[str]:
        return [title, *(cell(each and figure(value / 1e6 for value in each.values), form) for each in figures)]

    rows = [
        row("total time, s", "job_seconds", ".1f"),
        row("time a batch, ms", "batch_ms", ".2f"),
        row("examples/s, a worker", "each", ",.0f"),
        row("examples/s, together", "together", ",.0f"),
        row("efficiency", "efficiency", ".0%"),
        ["phases of a step, ms"] + [""] * len(sizes),
    ]
    for name, title in STEP_TITLES.items():
        if any(name in size.phases_ms for size in sizes):
            rows.append([f"  {title}", *(cell(size.phases_ms.get(name), ".2f") for size in sizes)])
    rows += [row("  accounted", "accounted", ".1%"), row("CPU, cores, all workers", "cpu", ".2f")]
    for name in sorted({name for size in sizes for name in size.network}):
        for way in _WAYS:
            rates = [size.network.get(name, {}).get(way) for size in sizes]
            rows.append(megabytes(f"{name} {way}, MB/s", rates, ".2f"))
    rows += [row("service CPU, cores", "service_cpu", ".2f"), row("service requests/s", "service_requests", ",.1f")]
    rows.append(megabytes("memory of a worker, MB", [size.resident_bytes for size in sizes]))
    rows.append(megabytes("memory of the service, MB", [size.service_resident_bytes for size in sizes]))
    if any(size.gpu_busy for size in sizes):
        rows.append(row("GPU busy", "gpu_busy", ".0%"))
        rows.append(megabytes("memory of a GPU, MB", [size.gpu_bytes for size in sizes]))
    headings = ["", *(f"{n} worker{'s' * (n > 1)}" for n in found)]
    lines = [
        f"{described(experiment)}; {bench.steps} steps a run; "
        f"median (range) of {bench.rounds} round{'s' * (bench.rounds > 1)}, all sizes in turn",
        "",
        *format_table(headings, rows),
        "",
        "Efficiency is relative to one worker in the same round, with as many threads and cores per worker.",
        "Phases inside the graph are the proportions in traced steps times the duration of the untraced session runs.",
    ]
    short = [n for n in found if n > cores]
    return lines + [f"{n} workers share {cores} cores here, so they cannot be {n} times as fast." for n in short]


def _draw_rates(path: str, found: dict[int, Size]) -> None:
    lines = {"measured": [(n, size.together) for n, size in found.items()]}
    if 1 in found:
        lines["one worker's times the workers"] = [(n, Figure((n * found[1].together.median,))) for n in found]
    chart.draw_lines(path, "Workers together", "workers", "examples/s", lines)


def _draw_phases(path: str, found: dict[int, Size]) -> None:
    stacks = {}
    used = [name for name in STEP_TITLES if any(name in size.phases_ms for size in found.values())]
    for n, size in found.items():
        parts = {STEP_TITLES[name]: size.phases_ms[name].median if name in size.phases_ms else 0.0 for name in used}
        whole = sum(parts.values()) / size.accounted.median
        stacks[f"{n} workers" if n > 1 else "1 worker"] = {**parts, "not accounted": whole - sum(parts.values())}
    chart.draw_stacks(path, "Phases of a step", "ms", stacks)
