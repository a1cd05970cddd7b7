"""Predicts the speed of a job with more workers, shards and bandwidth from measured costs, and checks predictions."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ctr_trainer.bench import chart, report
from ctr_trainer.bench.capacity import Prediction, Setup, predict
from ctr_trainer.bench.costs import Costs, lone_worker, measure_costs, read_costs
from ctr_trainer.bench.flags import BenchFlags, NetworkFlags, SimulateFlags
from ctr_trainer.bench.job_flags import described, job_flags
from ctr_trainer.bench.jobs import Job, run_rounds, scratch
from ctr_trainer.bench.report import Figure, cell, figure, format_table, write_report
from ctr_trainer.experiment.checks import way_of_exchange
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

SUMMARY = "examples/s of up to 1,000 workers, predicted from measured costs; --check compares with real jobs"
WITHIN_PERCENT = 15
_LOCK_COUNTS = 0.05  # The row lock is reported if it exceeds this share of a step.
_MOST_SHARING = 256  # The most workers of a machine for which the row lock is predicted.
_LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10_000)


class MakeSetup(Protocol):
    """Makes the `Setup` for a number of workers, on this machine or on the machines of the prediction."""

    def __call__(self, workers: int, here: bool = False) -> Setup: ...


def run(bench: BenchFlags, experiment: Experiment, flags: SimulateFlags, network: NetworkFlags) -> None:
    """Predicts and reports."""
    gbit = parse_gbit(network.gbit)
    host = report.describe()
    cores = flags.worker_cores or host["cores"]
    batch_size = experiment.data.batch_size * experiment.train.accumulation_steps
    if flags.costs:
        costs = read_costs(flags.costs)
        if flags.check and costs.batch_size != batch_size:
            raise UserError(
                f"--costs={flags.costs} were measured with {costs.batch_size} examples a step, but --check would run "
                f"{batch_size}: measure the costs again by leaving out --costs"
            )
    else:
        with scratch(bench.output) as directory:
            costs = measure_costs(
                flags=job_flags(experiment),
                batch_size=batch_size,
                optimizer=experiment.run.embedding.optimizer.name,
                steps=bench.steps,
                warmup=bench.trace_steps,
                directory=directory,
                timeout=bench.job_timeout,
            )

    def setup(workers: int, here: bool = False) -> Setup:
        rows, machines = experiment.run.embedding.service, 1
        if not here and workers > cores:
            machines = max(-(-workers // cores), 1)  # Each worker has a core.
            rows = rows if ":" in rows else "host:port"
        served = rows.split(",") if ":" in rows and rows != "host:port" else None
        return Setup(
            workers=workers,
            machines=machines,
            cores=host["cores"] if here else cores,
            rows="host:port" if served else rows,
            host_copies=experiment.run.embedding.row_copies != "worker" and not experiment.run.embedding.strict_sync,
            shards=len(served) if served else experiment.run.embedding.service_shards,
            sync_steps=experiment.run.embedding.sync_steps,
            dense_sync_steps=experiment.train.dense_sync_steps,
            prefetch_batches=experiment.run.prefetch_batches,
            gbit=gbit,
            in_memory=way_of_exchange(experiment) != "horovod",
        )

    checked = _check(bench, experiment, costs, setup) if flags.check else []
    ladder = [n for n in _LADDER if n < flags.most_workers] + [flags.most_workers]
    predicted = {workers: (setup(workers), predict(costs, setup(workers))) for workers in ladder}
    lines = _lines(costs, predicted, checked, experiment, cores, gbit)
    results = {
        "experiment": described(experiment),
        "costs": costs.to_dict(),
        "checked": checked,
        "predicted": {n: _to_json(*found) for n, found in predicted.items()},
    }
    charts = {"simulate.png": lambda path: _draw(path, predicted, checked)}
    write_report(bench.output, "simulate", host, lines, results, charts)


def parse_gbit(texts: Sequence[str]) -> float:
    """Returns the Gbit/s of the network that is simulated; 0.0 for no limit.

    Raises:
      UserError: the text is not a number, or there are several.
    """
    try:
        (gbit,) = map(float, texts or ("0",))
    except ValueError:
        gbit = -1.0
    if not 0 <= gbit < float("inf"):
        raise UserError(f"--gbit={','.join(texts)}: `simulate` takes one number of Gbit/s; 0 for no limit")
    return gbit


def _check(bench: BenchFlags, experiment: Experiment, costs: Costs, setup: MakeSetup) -> list[dict[str, Any]]:
    """Runs the jobs of --workers on this machine and compares each with its prediction; returns the rows for JSON."""
    cores = hardware.usable_cores()
    sizes = sorted(set(bench.workers))

    def job(workers: int) -> Job:
        # A lone worker also has one core only, so that the workers of all jobs are equal.
        shares = cores if workers <= cores else 0
        flags, name = job_flags(experiment), f"{workers} workers"
        if workers > 1 or shares <= 1:
            return Job(name, workers, flags, bench.steps, bench.trace_steps, shares)
        return lone_worker(flags, min(os.sched_getaffinity(0)), bench.steps, bench.trace_steps, name)

    jobs = {workers: job(workers) for workers in sizes}
    runs, failed = run_rounds(list(jobs.values()), bench.rounds, bench.output, bench.job_timeout)
    if failed:
        raise UserError("\n".join(failed.values()))
    checked = []
    for workers, each in jobs.items():
        measured = figure(sum(rank["examples_per_sec"] for rank in ranks) for ranks in runs[each.name])
        predicted = predict(costs, setup(workers, here=True))
        error = 100 * (predicted.examples_per_sec / measured.median - 1)
        checked.append(
            {
                "workers": workers,
                "predicted": predicted.examples_per_sec,
                "measured": measured.to_dict(),
                "error_percent": error,
                "bottleneck": predicted.bottleneck,
            }
        )
    return checked


def _lines(
    costs: Costs,
    predicted: Mapping[int, tuple[Setup, Prediction]],
    checked: Sequence[Mapping[str, Any]],
    experiment: Experiment,
    cores: int,
    gbit: float,
) -> list[str]:
    network = f"{gbit:g} Gbit/s" if gbit else "no limit"
    lines = [
        f"{described(experiment)}; sync_steps {experiment.run.embedding.sync_steps}, dense_sync_steps "
        f"{experiment.train.dense_sync_steps}; machines of {cores} cores, network: {network}",
        "",
        *format_table(["cost", ""], [[name, f"{value:,.6g}"] for name, value in costs.to_dict().items()]),
    ]
    if checked:
        rows = []
        for each in checked:
            measured = figure(each["measured"]["values"])
            rows.append(
                [str(each["workers"]), cell(each["predicted"]), cell(measured), f"{each['error_percent']:+.1f}%"]
            )
        worst = max(abs(each["error_percent"]) for each in checked)
        verdict = "within" if worst <= WITHIN_PERCENT else "NOT within"
        lines += ["", *format_table(["workers", "predicted", "measured", "error"], rows)]
        lines.append(f"At most {worst:.1f}% off: {verdict} {WITHIN_PERCENT}%.")
    rows = []
    for workers, (setup, found) in predicted.items():
        efficiency = found.examples_per_sec / workers / predicted[1][1].examples_per_sec
        cells = [str(workers), str(setup.machines), cell(found.examples_per_sec), f"{efficiency:.0%}"]
        cells += [cell(1000 * found.step_seconds, ".2f"), f"{found.row_lock_share:.1%}", found.bottleneck]
        rows.append(cells)
    headings = ["workers", "machines", "examples/s", "efficiency", "step, ms", "row lock", "first bottleneck"]
    lines += ["", *format_table(headings, rows)]
    return [*lines, *_lock_lines(costs, next(iter(predicted.values()))[0])]


def _lock_lines(costs: Costs, setup: Setup) -> list[str]:
    """Returns a line with the least number of workers at which the row lock matters; [] if workers share no rows."""

    def share(workers: int) -> float:
        rows = "shared" if setup.rows == "shared" else "auto"
        alone = dataclasses.replace(setup, workers=workers, machines=1, cores=workers, rows=rows)
        return predict(costs, alone).row_lock_share

    if share(2) == 0:
        return []
    first = next((workers for workers in range(2, _MOST_SHARING + 1) if share(workers) > _LOCK_COUNTS), None)
    where = f"with {first} workers or more on a machine" if first else f"with no more than {_MOST_SHARING} workers"
    return [
        "row lock: the share of a step in which a worker waits for or holds the lock of the rows that the workers of "
        f"its machine share; above {_LOCK_COUNTS:.0%} {where}."
    ]


def _to_json(setup: Setup, found: Prediction) -> dict[str, Any]:
    return {
        "machines": setup.machines,
        "shards": setup.shards,
        "examples_per_sec": found.examples_per_sec,
        "step_seconds": found.step_seconds,
        "parts": found.parts,
        "bottleneck": found.bottleneck,
        "row_lock_share": found.row_lock_share,
    }


def _draw(path: str, predicted: Mapping[int, tuple[Setup, Prediction]], checked: Sequence[Mapping[str, Any]]) -> None:
    one = predicted[1][1].examples_per_sec
    lines: dict[str, list[tuple[float, float | Figure]]] = {
        "predicted": [(n, found.examples_per_sec) for n, (_, found) in predicted.items()],
        "one worker's times the workers": [(n, n * one) for n in predicted],
    }
    for name in dict.fromkeys(found.bottleneck for _, found in predicted.values()):
        points: list[tuple[float, float | Figure]]
        points = [(n, found.examples_per_sec) for n, (_, found) in predicted.items() if found.bottleneck == name]
        lines[f"first bottleneck: {name}"] = points
    if checked:
        lines["measured"] = [(each["workers"], figure(each["measured"]["values"])) for each in checked]
    chart.draw_lines(path, "Workers together, predicted", "workers", "examples/s", lines, logarithmic=True)
