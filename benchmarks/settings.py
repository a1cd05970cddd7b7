"""Measures settings one by one: a row has the speed, AUC, time to the device and memory of one changed setting.

Each job trains on as many examples and is then evaluated. The settings of Horovod send the dense gradients through
Horovod: compare them with dense_exchange=horovod. The row `autotune` is a job with the best settings of a search by
Horovod, which is not measured; Horovod's log of the search is kept with --autotune_log. Horovod ignores
hierarchical_allreduce if all workers are on one machine, and without NCCL or MPI. Without --train_data, synthetic data
are made. The last line is JSON.

Examples: python benchmarks/settings.py --axes=sync_steps,batch_size,fp16_allreduce
          python benchmarks/settings.py --axes=autotune --autotune_log=tuned.csv
"""

import argparse
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import figures
import jobs
import sides
from figures import figure
from jobs import Job, Rounds, Setup, rate

from ctr_trainer.ranks import autotune
from ctr_trainer.settings.by_flag import by_flag
from ctr_trainer.system.messages.errors import UserError

DEFAULT, AUTOTUNE, MIXED_PRECISION = "default", "autotune", "mixed_precision"
BFLOAT16 = f"{MIXED_PRECISION}=bfloat16"
# Axes that are flags of `train`, with their values. The experiment's own value is the default and is left out.
FLAG_AXES: dict[str, tuple[object, ...]] = {
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
# Axes that are environment variables of Horovod, with row names and values. Horovod's defaults are 128 MB, 1 ms and 0.
HOROVOD_AXES: dict[str, tuple[str, dict[str, float]]] = {
    "tensor_fusion": ("FUSION_THRESHOLD", {f"tensor_fusion={size} MB": size << 20 for size in (0, 1, 16)}),
    "cycle_time": ("CYCLE_TIME", {f"cycle_time={ms:g} ms": ms for ms in (0.1, 5, 25)}),
    "hierarchical_allreduce": ("HIERARCHICAL_ALLREDUCE", {"hierarchical_allreduce": 1}),
}
BY_HOROVOD = ("--dense_exchange=horovod",)
AXES = (AUTOTUNE, *HOROVOD_AXES, *FLAG_AXES)
# With Horovod's defaults a search takes at least 1,200 steps; with these values it takes 135, and with fewer than
# LEAST_STEPS it writes no rows.
_PACE = {"STEPS_PER_SAMPLE": "3", "WARMUP_SAMPLES": "1", "BAYES_OPT_MAX_SAMPLES": "8"}
PACE = tuple((f"HOROVOD_AUTOTUNE_{name}", os.environ.get(f"HOROVOD_AUTOTUNE_{name}", _PACE[name])) for name in _PACE)
LEAST_STEPS = 60
_COLUMNS = (
    *(("setting", "setting", ""), ("examples/s together", "together", ",.0f"), ("over default", "speedup", ".2f")),
    *(("AUC", "auc", ".4f"), ("AUC change", "auc_change", "+.4f"), ("read sample, ms", "read_sample_ms", ".2f")),
    *(("input to device, ms", "input_to_device_ms", ".2f"), ("worker, MB", "resident_mb", ",.0f")),
    *(("service, MB", "service_resident_mb", ",.0f"), ("GPU busy", "gpu_busy", ".0%"), ("GPU, MB", "gpu_mb", ",.0f")),
)


def axes(text: str) -> list[str]:
    """Parses --axes."""
    if unknown := [name for name in sides.words(text) if name not in AXES]:
        raise argparse.ArgumentTypeError(f"there is no axis {unknown[0]}: choose from {', '.join(AXES)}")
    return [name for name in AXES if name in sides.words(text)]


def variants(axis: str, setup: Setup, workers: int) -> list[Job]:
    """Returns the jobs of an axis, without the value that the experiment already has."""
    if axis in HOROVOD_AXES:
        variable, rows = HOROVOD_AXES[axis]
        return [
            setup.job(name, workers, BY_HOROVOD, environment=((f"HOROVOD_{variable}", f"{value}"),))
            for name, value in rows.items()
        ]
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in FLAG_AXES[axis]]
    own = str(by_flag(setup.experiment)[axis])
    more = BY_HOROVOD if axis == "fp16_allreduce" else ()
    return [setup.job(f"{axis}={text}", workers, (f"--{axis}={text}", *more)) for text in texts if text != own.lower()]


def autotune_job(setup: Setup, workers: int, log: pathlib.Path) -> Job:
    """Runs Horovod's search, which writes the log, and returns a job with the settings that it found."""
    flags = ("--autotune", f"--autotune_log={log}", "--eval_data=", "--deterministic=false", *BY_HOROVOD)
    search = setup.job("search", workers, flags, environment=PACE)
    Job(**{**vars(search), "steps": max(search.steps, LEAST_STEPS)}).run()
    try:
        best = autotune.best_row(str(log))
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(f"autotune found {autotune.format_row(best)}: --autotune_log={log}")
    return setup.job(AUTOTUNE, workers, (f"--autotune_log={log}", *BY_HOROVOD))


def summarize(rounds: Rounds, default: Rounds | None) -> dict[str, Any]:
    """Returns the figures of a setting; figures that were not measured are None.

    `speedup` and `auc_change` compare with the default in the same round; the other figures are those of
    `jobs.figures_of`.
    """
    pairs = [*zip(rounds, default, strict=True)] if default else []
    found = jobs.figures_of(rounds, None)
    return {
        "together": found["together"],
        "speedup": figure(rate(ranks) / rate(other) for ranks, other in pairs),
        "auc": figure(ranks[0]["auc"] for ranks in rounds),
        "auc_change": figure(ranks[0]["auc"] - other[0]["auc"] for ranks, other in pairs),
        "read_sample_ms": found["phases_ms"].get("read_sample"),
        "input_to_device_ms": found["phases_ms"].get("input_to_device"),
        **{name: found[name] for name in ("resident_bytes", "service_resident_bytes", "gpu_busy", "gpu_bytes")},
    }


def table(rows: Mapping[str, Mapping[str, Any]], rounds: int) -> list[str]:
    """Returns the lines of the table; changes of the AUC are shown only if there were several rounds."""
    cells = []
    for name, row in rows.items():
        sizes = {key.replace("bytes", "mb"): row[key] and row[key] / 1e6 for key in row if key.endswith("bytes")}
        change = row["auc_change"] if rounds > 1 else None
        cells.append({"setting": name, **row, **sizes, "auc_change": change})
    return sides.markdown(_COLUMNS, cells)


def main(arguments: list[str] | None = None) -> None:
    parser = jobs.parser(__doc__, rows=200_000)
    parser.add_argument("--workers", type=int, default=2, help="number of workers; default 2")
    parser.add_argument("--axes", type=axes, default=[*AXES], help=f"default all: {','.join(AXES)}")
    parser.add_argument("--autotune_log", type=pathlib.Path, help="file of the search's log, which is then kept")
    flags, on = parser.parse_args(arguments), figures.machine()
    workers, failed = flags.workers, dict[str, str]()
    missing = [BFLOAT16] if MIXED_PRECISION in flags.axes and not on["bfloat16"] else []
    with tempfile.TemporaryDirectory() as directory:
        setup = jobs.setup_with_data(flags, directory)
        every = [setup.job(DEFAULT, workers)]
        for axis in flags.axes:
            if axis != AUTOTUNE:
                every += [job for job in variants(axis, setup, workers) if job.name not in missing]
                continue
            try:
                log = flags.autotune_log or pathlib.Path(directory, "autotune.csv")
                every.append(autotune_job(setup, workers, log.resolve()))
            except SystemExit as error:
                failed[AUTOTUNE] = str(error)
        runs, errors = setup.measure(every)
    rows = {name: summarize(rounds, runs.get(DEFAULT)) for name, rounds in runs.items()}
    lacks = "this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)"
    notes = [f"{name} is left out: {lacks}" for name in missing]
    notes += [figures.ONE_ROUND] * (setup.rounds == 1)
    results = {
        "experiment": setup.title(workers),
        "flags": setup.flags,
        "workers": workers,
        "rounds": setup.rounds,
        "settings": {**rows, **dict.fromkeys(missing)},
        "notes": notes,
    }
    lines = [setup.title(workers), "", *table(rows, setup.rounds), "", *notes]
    figures.report("settings", on, lines, results, failed | errors)


if __name__ == "__main__":
    main()
