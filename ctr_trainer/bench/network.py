"""The same job over several machines with a limited network, made of namespaces on this one."""

import math
import os
import pathlib
import tempfile

from ctr_trainer.bench import chart, namespaces, network_columns, report, ssh
from ctr_trainer.bench.job_flags import described, equal_examples, job_flags
from ctr_trainer.bench.jobs import (
    AUTOTUNE_LEAST_STEPS,
    Job,
    autotune_flags,
    autotune_pace,
    require_horovodrun,
    run_rounds,
)
from ctr_trainer.bench.network_job import NetworkJob
from ctr_trainer.bench.reference_networks import CONVOLUTION, PARAMS, describe, networks
from ctr_trainer.bench.report import ONE_ROUND, cell, figure, format_table, write_report
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import autotune

SUMMARY = "one job over --machines=4 with --gbit=2.5,5 between them, built on this machine (root)"
ALONE, ONE_MACHINE = "one worker", "one machine"
SEARCHING, TUNED = "searching", "tuned"
AUTOTUNE = "autotune"
_ACCUMULATION_STEPS = 5
# What `--ways` names, but for autotune, which is two: the search, and a job with what it found.
WAYS = {
    "plain": (),
    "fp16": ("--fp16_allreduce",),
    "accumulation": (f"--accumulation_steps={_ACCUMULATION_STEPS}",),
    "sync": ("--dense_sync_steps=30", "--sync_steps=30"),
}
_WAYS = (*WAYS, AUTOTUNE)
_DEFAULT_WAYS = ("plain", "fp16", AUTOTUNE)
_MEANINGS = {
    **{way: " ".join(flags) or "an allreduce each step" for way, flags in WAYS.items()},
    SEARCHING: "--autotune, while Horovod searches for its best settings",
    TUNED: "--autotune_log, with the best settings of the search before it",
}
_DEFAULT_GBIT = ("2.5", "5")

# Time in percent of one GPU's for equal data: (tower, machines, Gbit/s, way), and of four GPUs in one machine.
REFERENCE = {
    ("resnet50", 4, 2.5, "plain"): 99,
    ("resnet50", 4, 5.0, "plain"): 49,
    ("vgg16", 4, 2.5, "plain"): 345,
    ("vgg16", 4, 5.0, "plain"): 173,
    ("vgg16", 4, 5.0, "fp16"): 87,
}
REFERENCE_ONE_MACHINE = {("resnet50", 4): 29, ("vgg16", 4): 28}
_REFERENCE_TEXT = (
    "Reference: 4 machines with a GPU each (or 4 GPUs in one), convolutional networks. Our resnet50 and vgg16 have the "
    "parameters, over --scale, as layers of an MLP behind embeddings, on CPU cores; a convolution computes 50 to 160 "
    "times more with each parameter, so these towers meet the limit sooner, and it moves with what a machine computes.",
    "Horovod's autotune took the first at 5 Gbit/s from 49% to 61%.",
)
_CONVOLUTION_TEXT = (
    "conv has the parameters of ResNet-50, over --scale, in convolutions that compute as much with each of them."
)


def run(bench, experiment, flags):
    """Measures and reports.

    Args:
      bench: BenchFlags.
      experiment: `Experiment`.
      flags: NetworkFlags.
    """
    speeds, ways, towers = _speeds(flags.gbit), _ways(flags.ways), networks(flags.dense_params, flags.scale)
    if experiment.run.embedding.service != "auto":
        raise UserError(
            "`bench network` starts a service of its own on the first machine: leave out --embedding_service"
        )
    if CONVOLUTION in towers and experiment.model.model_params:
        raise UserError(f"--dense_params={CONVOLUTION} is a model of its own: leave out --model_params")
    namespaces.require_privileges({**namespaces.PACKAGES, **ssh.PACKAGES})
    require_horovodrun()
    host, cores = report.describe(), sorted(os.sched_getaffinity(0))
    with namespaces.machines(flags.machines, cores) as machines, tempfile.TemporaryDirectory() as directory:
        with ssh.daemons(machines, directory) as programs:
            logs = {
                (tower, _place(gbit)): pathlib.Path(directory, f"{tower}-{gbit:g}.csv")
                for tower in towers
                for gbit in speeds
            }
            jobs = []
            for tower, own in towers.items():
                make = _Maker(tower, own, bench, experiment)
                shares = max(flags.machines, len(cores))
                jobs += [make.job("alone", 1, core_shares=shares), make.job(ONE_MACHINE, flags.machines)]
                for gbit in speeds:
                    for way in ways:
                        job = make.job_of_way(_place(gbit), way, flags.machines, logs[tower, _place(gbit)])
                        jobs.append(NetworkJob(job, machines, gbit, programs))
            runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout)
        tuned = _best_rows(logs) if TUNED in ways else {}
    found = {tower: summarize(tower, runs, speeds, ways) for tower in towers}
    columns = {tower: _columns(tower, runs, speeds, ways, bench, experiment) for tower in towers}
    trained = described(experiment, describe(flags.dense_params, experiment.model.model))
    lines = _lines(trained, found, columns, tuned, ways, failed, bench, experiment, flags, host)
    results = {
        "experiment": trained,
        "machines": flags.machines,
        "towers": {tower: list(each) for tower, each in towers.items()},
        "scale": flags.scale,
        "rounds": bench.rounds,
        "steps": bench.steps,
        "time_percent": {
            tower: {
                place: {way: value and value.to_dict() for way, value in row.items()} for place, row in rows.items()
            }
            for tower, rows in found.items()
        },
        "columns": {
            tower: {" ".join(key).strip(): column.to_dict() for key, column in own.items()}
            for tower, own in columns.items()
        },
        "autotune": {" ".join(key): row for key, row in tuned.items()},
        "exchange_ms": _exchange_ms(runs),
        "failed": failed,
    }
    charts = {f"network_{tower}.png": lambda path, tower=tower: _draw(path, tower, found[tower]) for tower in towers}
    write_report(bench.output, "network", host, lines, results, charts)


class _Maker:
    """Makes the jobs of a tower."""

    def __init__(self, tower, flags, bench, experiment):
        self._tower, self._flags, self._bench, self._experiment = tower, flags, bench, experiment

    def job(self, name, workers, more=(), least_steps=0, **settings):
        """-> Job"""
        steps, warmup = equal_examples(more, self._bench, self._experiment)
        flags = (*job_flags(self._experiment), *self._flags, *more)
        return Job(f"{self._tower} {name}", workers, flags, max(steps, least_steps), warmup, **settings)

    def job_of_way(self, place, way, workers, log):
        """-> Job of a way at a place, as `5 Gbit`; of a search it writes the log, that with its best reads it."""
        name = f"{place} {way}"
        if way == SEARCHING:
            more, least = autotune_flags(log), AUTOTUNE_LEAST_STEPS
            return self.job(name, workers, more, least, environment=autotune_pace())
        return self.job(name, workers, (f"--autotune_log={log}",) if way == TUNED else WAYS[way])


def summarize(tower, runs, speeds, ways):
    """-> by `one machine` and by speed, as `5 Gbit`, dict of way -> Figure of the time for equal data, in percent of
    one worker's in the same round; None for what failed.
    """

    def percent(name):
        return network_columns.time_percent(runs.get(f"{tower} {name}"), runs.get(f"{tower} alone"))

    rows = {ONE_MACHINE: {"plain": percent(ONE_MACHINE)}}
    return rows | {_place(gbit): {way: percent(f"{_place(gbit)} {way}") for way in ways} for gbit in speeds}


def _columns(tower, runs, speeds, ways, bench, experiment):
    """-> dict of (place, way) -> `network_columns.Column` of what did not fail."""
    batches = experiment.train.accumulation_steps
    examples = (bench.steps + bench.trace_steps) * batches * experiment.data.batch_size
    alone = runs.get(f"{tower} alone")
    names = {(ALONE, ""): "alone", (ONE_MACHINE, ""): ONE_MACHINE}
    names |= {(_place(gbit), way): f"{_place(gbit)} {way}" for gbit in speeds for way in ways}
    return {
        (place, way): network_columns.measure(
            runs[f"{tower} {name}"],
            alone,
            examples,
            interface=namespaces.INTERFACE if way else "lo",
            batches=_ACCUMULATION_STEPS if way == "accumulation" else batches,
            gbit=float(place.split()[0]) if way else 0.0,
        )
        for (place, way), name in names.items()
        if f"{tower} {name}" in runs
    }


def _best_rows(logs):
    """-> dict of (tower, place) -> the best row of the last round's search, where there is one."""
    found = {}
    for key, log in logs.items():
        try:
            found[key] = autotune.best_row(log)
        except UserError:  # Its job has failed, and the report says so.
            continue
    return found


def _exchange_ms(runs):
    """-> dict of job -> dict of the step, of its exchange and of its dense sync, ms, of the rounds' first ranks."""
    found = {}
    for name, rounds in runs.items():
        phases = [ranks[0]["phases"] for ranks in rounds]
        found[name] = {
            "step": figure(1000 * each["step_seconds"] for each in phases).to_dict(),
            **{
                name: figure(1000 * each["seconds"].get(name, 0.0) for each in phases).to_dict()
                for name in ("exchange", "dense_sync")
            },
        }
    return found


def _lines(trained, found, columns, tuned, ways, failed, bench, experiment, flags, host):
    lines = [
        f"{trained}; {flags.machines} machines with a core each; {bench.steps} steps a run; "
        f"{bench.rounds} round{'s' * (bench.rounds > 1)}, all jobs in turn",
    ]
    for tower, own in columns.items():
        lines += ["", f"{tower}, medians:", *network_columns.table(own)]
    lines += ["", "Time for equal data, percent of one worker's; median (range)."]
    for tower, rows in found.items():
        shown = list(dict.fromkeys(way for row in rows.values() for way in row))
        table = []
        for place, row in rows.items():
            cells = (cell(row.get(way), ".0f") for way in shown)
            table.append([place, *cells, _reference(tower, place, flags.machines)])
        lines += ["", f"{tower}:", *format_table(["", *shown, "reference"], table)]
    lines += ["", *(f"  {way}: {_MEANINGS[way]}" for way in ways)]
    lines += [
        f"{tower}, {place}: Horovod was fastest with {autotune.format_row(row)}"
        for (tower, place), row in tuned.items()
    ]
    lines += [
        f"Total time is for the {(bench.steps + bench.trace_steps) * experiment.train.accumulation_steps} batches "
        "of one worker, shared among all. Receiving and sending are a machine's, the mean of all; of jobs on one "
        "machine, what passes its loopback.",
    ]
    if any(tower in PARAMS for tower in found):
        lines += _REFERENCE_TEXT
    if CONVOLUTION in found:
        lines.append(_CONVOLUTION_TEXT)
    if any(tower in PARAMS or tower == CONVOLUTION for tower in found):
        lines.append(f"Parameters are over --scale={flags.scale:g}.")
    if bench.rounds == 1:
        lines.append(ONE_ROUND)
    if flags.machines > host["cores"]:
        lines.append(
            f"{flags.machines} machines share {host['cores']} cores here, so the compute does not grow with them."
        )
    return lines + [f"{name} failed: {error}" for name, error in failed.items()]


def _reference(tower, place, machines):
    if place == ONE_MACHINE:
        known = {"plain": REFERENCE_ONE_MACHINE.get((tower, machines))}
    else:
        gbit = float(place.split()[0])
        known = {way: REFERENCE.get((tower, machines, gbit, way)) for way in WAYS}
    return ", ".join(f"{way} {percent}" for way, percent in known.items() if percent is not None) or "-"


def _draw(path, tower, rows):
    bars = {f"{place}, {way}": value for place, row in rows.items() for way, value in row.items() if value}
    chart.draw_bars(path, f"Time for equal data, {tower}", "percent of one worker's", bars)


def _place(gbit):
    return f"{gbit:g} Gbit"


def _speeds(texts):
    speeds = []
    for text in texts or _DEFAULT_GBIT:
        try:
            speeds.append(float(text))
        except ValueError:
            speeds.append(-1.0)
        if not 0 <= speeds[-1] < math.inf:
            raise UserError(f"--gbit={text}: expected Gbit/s, comma separated, as 2.5,5; 0 for no limit")
    return speeds


def _ways(names):
    """-> the ways to measure, in which autotune is two."""
    wrong = [name for name in names if name not in _WAYS]
    if wrong:
        raise UserError(f"--ways={','.join(names)}: there is no {', '.join(wrong)}, only {', '.join(_WAYS)}")
    chosen = names or _DEFAULT_WAYS
    return [way for name in chosen for way in ((SEARCHING, TUNED) if name == AUTOTUNE else (name,))]
