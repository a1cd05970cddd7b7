"""Measures settings one by one: a row has the speed, AUC, time to the device and memory of one changed setting."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.bench import chart, report, scaling
from ctr_trainer.bench.job_flags import (
    BenchFlags,
    autotune_flags,
    autotune_pace,
    described,
    equal_examples,
    job_flags,
    with_data,
)
from ctr_trainer.bench.jobs import Job, Rounds, rate, run_rounds, scratch
from ctr_trainer.bench.report import Figure, cell, figure, write_report
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.reports.comparison import format_table
from ctr_trainer.ranks import autotune
from ctr_trainer.settings.by_flag import by_flag
from ctr_trainer.system.files import outputs
from ctr_trainer.system.measuring.clock import STEP_TITLES
from ctr_trainer.system.messages.errors import UserError

SUMMARY = "examples/s, AUC, time to the device and memory for one setting at a time, compared with the default"
DEFAULT = "default"
ONE_ROUND = (
    "One round does not show the change of the AUC, which depends on the seed as well: --rounds=3 uses three seeds."
)
# The columns: name in `summarize` -> heading, format and, for some, the unit.
_SPEED = {"together": ("examples/s together", ",.0f"), "speedup": ("over default", ".2f"), "auc": ("AUC", ".4f")}
_AUC_CHANGE = {"auc_change": ("AUC change", "+.4f")}
_COSTS = {
    "read_sample_ms": (f"{STEP_TITLES['read_sample']}, ms", ".2f", 1),
    "input_to_device_ms": (f"{STEP_TITLES['input_to_device']}, ms", ".2f", 1),
    "resident_bytes": ("worker, MB", ",.0f", 1e6),
    "service_resident_bytes": ("service, MB", ",.0f", 1e6),
    "gpu_busy": ("GPU busy", ".0%", 1),
    "gpu_bytes": ("GPU, MB", ",.0f", 1e6),
}
_MEANING = (
    f"{STEP_TITLES['read_sample'].capitalize()}, {STEP_TITLES['input_to_device']}: the time that a step waits for its "
    "batch and the time to feed it; MB: the most memory that a worker held, and the memory of the service at the end. "
    "Medians."
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row's setting, which differs from the default, such as `sync_steps=100`.

    `flags` of `train` follow the experiment's own flags; `environment` has (name, value) of each variable.
    """

    name: str
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


MIXED_PRECISION = "mixed_precision"
# Axes that are flags of `train`, with their values. The experiment's own value is the default and is left out.
FLAG_AXES = {
    "fp16_allreduce": (True, False),
    "accumulation_steps": (1, 2, 5, 10, 20),
    "dense_exchange": ("auto", "horovod"),
    "dense_sync_steps": (1, 10, 30),
    "sync_steps": (1, 10, 30, 100),
    "batch_size": (256, 512, 1024, 2048, 4096),
    "num_readers": (1, 2, 4),
    "embedding_service": ("auto", "shared"),
    MIXED_PRECISION: ("none", "bfloat16"),
}
_BY_HOROVOD = ("--dense_exchange=horovod",)
# Axes that are environment variables of Horovod, with row names and values. Horovod's defaults are 128 MB, 1 ms and 0.
HOROVOD_AXES: dict[str, tuple[str, dict[str, float]]] = {
    "tensor_fusion": ("FUSION_THRESHOLD", {f"tensor_fusion={size} MB": size << 20 for size in (0, 1, 16)}),
    "cycle_time": ("CYCLE_TIME", {f"cycle_time={ms:g} ms": ms for ms in (0.1, 5, 25)}),
    "hierarchical_allreduce": ("HIERARCHICAL_ALLREDUCE", {"hierarchical_allreduce": 1}),
}
AUTOTUNE = "autotune"
AXES = (AUTOTUNE, *HOROVOD_AXES, *FLAG_AXES)
NOTES = {
    "dense_exchange": "fp16_allreduce, autotune and Horovod's own settings send the dense gradients through Horovod: "
    "compare them with dense_exchange=horovod.",
    "hierarchical_allreduce": "Horovod ignores hierarchical_allreduce if all workers are on one machine, and without "
    "NCCL or MPI.",
}


def chosen(names: Sequence[str]) -> list[str]:
    """Returns the axes to vary, in the order of AXES; all axes if no names are given.

    Raises:
      UserError: there is no such axis.
    """
    unknown = [name for name in names if name not in AXES]
    if unknown:
        raise UserError(f"--axes={','.join(names)}: no axis {', '.join(unknown)}; there are {', '.join(AXES)}")
    return [name for name in AXES if not names or name in names]


def variants(axis: str, experiment: Experiment) -> list[Variant]:
    """Returns the variants of an axis, without the value that the experiment already has."""
    if axis in HOROVOD_AXES:
        variable, rows = HOROVOD_AXES[axis]
        return [Variant(name, _BY_HOROVOD, ((f"HOROVOD_{variable}", f"{value}"),)) for name, value in rows.items()]
    own = by_flag(experiment)[axis]
    values = [value for value in FLAG_AXES[axis] if value != own]
    more = _BY_HOROVOD if axis == "fp16_allreduce" else ()
    return [Variant(f"{axis}={_text(value)}", (f"--{axis}={_text(value)}", *more)) for value in values]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def left_out(names: Sequence[str], machine: Mapping[str, Any]) -> dict[str, str]:
    """Returns a dict of variant -> reason, for the variants that this machine cannot run."""
    bfloat16 = f"{MIXED_PRECISION}=bfloat16"
    if MIXED_PRECISION not in names:
        return {}
    if machine["gpus"]:
        return {bfloat16: "it is for CPUs, and this machine has a GPU"}
    if not machine["bfloat16"]:
        return {bfloat16: "this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)"}
    return {}


def run(bench: BenchFlags, experiment: Experiment) -> None:
    """Measures and reports."""
    names = chosen(bench.axes)
    host = report.describe()
    experiment = with_data(bench, experiment)
    workers = max(bench.workers)
    variant_jobs = [_job(Variant(DEFAULT), bench, experiment, workers)]
    missing = left_out(names, host)
    failed: dict[str, str] = {}
    notes = [NOTES[name] for name in names if name in NOTES]
    for name in names:
        if name == AUTOTUNE:
            variant_jobs += _tuned(bench, experiment, workers, failed, notes)
        else:
            possible = [each for each in variants(name, experiment) if each.name not in missing]
            variant_jobs += [_job(each, bench, experiment, workers) for each in possible]
    runs, errors = run_rounds(variant_jobs, bench.rounds, bench.output, bench.job_timeout, experiment.run.seed)
    failed |= errors
    if bench.rounds == 1:
        notes.append(ONE_ROUND)
    rows = {job.name: summarize(runs[job.name], runs.get(DEFAULT)) for job in variant_jobs if job.name in runs}
    results = {
        "experiment": described(experiment),
        "flags": job_flags(experiment, evaluate=True),
        "workers": workers,
        "rounds": bench.rounds,
        "settings": {**rows, **dict.fromkeys(missing)},
        "notes": notes,
    }
    notes += [f"{name} is left out: {why}" for name, why in missing.items()]
    text = lines(rows, notes, bench, experiment, workers)
    rates = {name: row["together"] for name, row in rows.items()}
    points = {name: (row["together"], row["auc"]) for name, row in rows.items()}
    charts = {
        "settings.png": lambda path: chart.draw_bars(path, f"{workers} workers", "examples/s together", rates),
        "settings_auc.png": lambda path: chart.draw_points(
            path, "What speed costs", "examples/s together", "AUC", points
        ),
    }
    write_report(bench.output, "settings", host, text, results, charts, failed)


def summarize(rounds: Rounds, default: Rounds | None) -> dict[str, Figure | None]:
    """Returns the figures of a setting; figures that were not measured are None.

    `together` is examples/s; `speedup` and `auc_change` compare with the default in the same round; the times of a step
    are means over the workers, see `StepTraceHook`; the memory and GPU figures are those of `scaling.Size`.
    """
    pairs = list(zip(rounds, default, strict=True)) if default else []
    size = scaling.summarize(rounds, None)
    return {
        "together": size.together,
        "speedup": figure(rate(ranks) / rate(other) for ranks, other in pairs),
        "auc": figure(ranks[0]["auc"] for ranks in rounds),
        "auc_change": figure(ranks[0]["auc"] - other[0]["auc"] for ranks, other in pairs),
        "read_sample_ms": size.phases_ms.get("read_sample"),
        "input_to_device_ms": size.phases_ms.get("input_to_device"),
        "resident_bytes": size.resident_bytes,
        "service_resident_bytes": size.service_resident_bytes,
        "gpu_busy": size.gpu_busy,
        "gpu_bytes": size.gpu_bytes,
    }


def _job(variant: Variant, bench: BenchFlags, experiment: Experiment, workers: int) -> Job:
    steps, warmup = equal_examples(variant.flags, bench, experiment)
    flags = (*job_flags(experiment, evaluate=True), *variant.flags)
    return Job(variant.name, workers, flags, steps, warmup, environment=variant.environment)


def _tuned(
    bench: BenchFlags, experiment: Experiment, workers: int, failed: dict[str, str], notes: list[str]
) -> list[Job]:
    """Runs Horovod's autotune search without measuring it, and returns [a job with the settings that it found].

    The function adds a line to `notes`. If the search fails, it adds the error to `failed` instead and returns [].
    """
    log = os.path.abspath(outputs.claim(bench.output, ["autotune.csv"])["autotune.csv"])
    flags = (*autotune_flags(log), "--eval_data=", "--deterministic=false")
    search = _job(Variant("autotune search", flags, autotune_pace()), bench, experiment, workers)
    try:
        with scratch(bench.output) as directory:
            search.run(os.path.join(directory, "autotune"), bench.job_timeout)
        found = autotune.best_row(log)
    except UserError as error:
        failed[AUTOTUNE] = str(error)
        return []
    notes.append(f"autotune found {autotune.format_row(found)}: --autotune_log={log}")
    return [_job(Variant(AUTOTUNE, (f"--autotune_log={log}", *_BY_HOROVOD)), bench, experiment, workers)]


def lines(
    rows: Mapping[str, Mapping[str, Figure | None]],
    notes: Sequence[str],
    bench: BenchFlags,
    experiment: Experiment,
    workers: int,
) -> list[str]:
    """Returns the lines of the report: the figures of each setting, see `summarize`, and `notes` at the end."""
    columns = _SPEED | (_AUC_CHANGE if bench.rounds > 1 else {})
    costs = {key: column for key, column in _COSTS.items() if any(row[key] for row in rows.values())}
    headings = ["setting", *(heading for heading, *_ in (columns | costs).values())]
    cells = []
    for name, row in rows.items():
        measured = (cell(row[key], form) for key, (_, form) in columns.items())
        medians = (_median(row[key], unit, form) for key, (_, form, unit) in costs.items())
        cells.append([name, *measured, *medians])
    examples = (bench.steps + bench.trace_steps) * workers
    examples *= experiment.data.batch_size * experiment.train.accumulation_steps
    return [
        f"{described(experiment)}; {workers} worker{'s' * (workers > 1)}; {examples:,} examples a run, then evaluated; "
        f"median (range) of {bench.rounds} round{'s' * (bench.rounds > 1)}, each with another seed, all settings in "
        "turn",
        "",
        *format_table(headings, cells),
        "",
        _MEANING,
        *notes,
    ]


def _median(value: Figure | None, unit: float, form: str) -> str:
    return cell(value and value.median / unit, form)
