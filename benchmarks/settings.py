"""Measures settings one by one: a row has the speed, AUC, time to the device and memory of one changed setting.

Each job trains on as many examples and is evaluated five times. K batches a step (`accumulation_steps`) make one K-th
of the optimizer steps, with the same learning rates unless `--scale_lr=linear_batches` or `sqrt_batches` is given. The
axis `methods` compares ways to train on two devices with one worker: one process with two towers computes each half of
a batch on its own device, as PyTorch's DataParallel does, with twice the learning rates.

The settings of Horovod send the dense gradients through Horovod: compare them with dense_exchange=horovod. Horovod
ignores hierarchical_allreduce if all workers are on one machine, and without NCCL or MPI. Without --train_data,
synthetic data are made. The last line is JSON.

Examples: python benchmarks/settings.py --axes=sync_steps,batch_size,fp16_allreduce
          python benchmarks/settings.py --axes=accumulation_steps --accumulation_steps=1,2,4,8 --rows=600000
          python benchmarks/settings.py --axes=methods
"""

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import figures
import jobs
import sides
from figures import figure
from jobs import Job, Rounds, Setup, rate

from ctr_trainer.settings.by_flag import by_flag

DEFAULT, METHODS, MIXED_PRECISION = "default", "methods", "mixed_precision"
ACCUMULATION, ONE, DEVICES = "accumulation_steps", "one worker", 2
EVALUATIONS = 5  # Evaluations of each run, evenly spaced; the last one is at its end.
BFLOAT16 = f"{MIXED_PRECISION}=bfloat16"
# Axes that are flags of `train`, with their values. The experiment's own value is the default and is left out.
FLAG_AXES: dict[str, tuple[object, ...]] = {
    "fp16_allreduce": (True, False),
    ACCUMULATION: (1, 2, 5, 10, 20),
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
AXES = (*HOROVOD_AXES, *FLAG_AXES, METHODS)
_OF_RUN = ("learning_rate", "training_auc", "training_accuracy", "accuracy", "auc", "logloss", "copc")
_COLUMNS = (
    *(("setting", "setting", ""), ("batch size", "batch_size", ",d"), ("steps", "optimizer_steps", ",d")),
    *(("learning rate", "learning_rate", "g"), ("seconds", "seconds", ",.1f")),
    *(("with evaluations", "seconds_with_evaluations", ",.1f"), ("examples/s together", "together", ",.0f")),
    *(("over default", "speedup", ".2f"), ("time saved, percent", "saved_percent", ".0f")),
    *(("training AUC", "training_auc", ".4f"), ("training accuracy", "training_accuracy", ".4f")),
    *(("accuracy", "accuracy", ".4f"), ("best accuracy", "best_accuracy", ".4f"), ("AUC", "auc", ".4f")),
    *(("AUC change", "auc_change", "+.4f"), ("best in the run", "best_auc", ".4f"), ("best so far", "mark", "")),
    *(("log loss", "logloss", ".4f"), ("COPC", "copc", ".3f"), ("read sample, ms", "read_sample_ms", ".2f")),
    *(("input to device, ms", "input_to_device_ms", ".2f"), ("worker, MB", "resident_mb", ",.0f")),
    *(("service, MB", "service_resident_mb", ",.0f"), ("GPU busy", "gpu_busy", ".0%"), ("GPU, MB", "gpu_mb", ",.0f")),
)


def variants(axis: str, setup: Setup, workers: int, values: Sequence[object] | None = None) -> list[Job]:
    """Returns the jobs of an axis, or of some values of it, without the value that the experiment already has."""
    if axis in HOROVOD_AXES:
        variable, rows = HOROVOD_AXES[axis]
        return [
            setup.job(name, workers, BY_HOROVOD, environment=((f"HOROVOD_{variable}", f"{value}"),))
            for name, value in rows.items()
        ]
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values or FLAG_AXES[axis]]
    own = str(by_flag(setup.experiment)[axis])
    more = BY_HOROVOD if axis == "fp16_allreduce" else ()
    return [setup.job(f"{axis}={text}", workers, (f"--{axis}={text}", *more)) for text in texts if text != own.lower()]


def methods(setup: Setup) -> list[Job]:
    """Returns the ways to train on two devices; a device is half of the cores, and two towers have all of them."""
    experiment = setup.experiment
    rates = (
        f"--batch_size={DEVICES * experiment.data.batch_size}",
        f"--learning_rate={DEVICES * experiment.train.learning_rate:g}",
        f"--embedding_learning_rate={DEVICES * experiment.run.embedding.learning_rate:g}",
    )
    given = experiment.train.accumulation_steps
    k, plain = given if given > 1 else 5, (f"--{ACCUMULATION}=1",)
    two, many = "two processes", (f"--{ACCUMULATION}={k}",)
    return [
        setup.job(ONE, 1, plain, 1, core_shares=DEVICES),
        setup.job("one process, two towers", 1, (*plain, *rates), DEVICES, core_shares=1, towers=DEVICES),
        setup.job(two, DEVICES, plain, DEVICES, core_shares=DEVICES),
        setup.job(f"{two}, {k} batches a step", DEVICES, many, DEVICES * k, core_shares=DEVICES),
    ]


def evaluated(job: Job) -> Job:
    """Returns the job with its evaluations."""
    every = math.ceil((job.steps + job.warmup) / EVALUATIONS)
    return dataclasses.replace(job, flags=(*job.flags, f"--eval_steps={every}"))


def summarize(job: Job, rounds: Rounds, default: Rounds | None) -> dict[str, Any]:
    """Returns the figures of a job; figures that were not measured are None.

    `together` is examples/s, and `seconds` is the time for all `examples` at that rate. `speedup`, `saved_percent` and
    `auc_change` compare with the default in the same round. On the validation data, `best_auc` and `best_accuracy` are
    the maxima over all evaluations, which `evaluations` has for each round; the other metrics are of the last one. The
    remaining figures are those of `jobs.figures_of`.
    """
    experiment, steps = jobs.experiment_of(job.flags), job.steps + job.warmup
    size = job.workers * experiment.train.accumulation_steps * experiment.data.batch_size
    pairs, firsts = [*zip(rounds, default, strict=True)] if default else [], [ranks[0] for ranks in rounds]
    seconds, found = [steps * size / rate(ranks) for ranks in rounds], jobs.figures_of(rounds, None)
    with_evaluations = (own + first["evaluation_seconds"] for own, first in zip(seconds, firsts, strict=True))
    return {
        **{"batch_size": size, "optimizer_steps": steps, "examples": steps * size},
        **{"seconds": figure(seconds), "seconds_with_evaluations": figure(with_evaluations)},
        "together": found["together"],
        "speedup": figure(rate(ranks) / rate(other) for ranks, other in pairs),
        "saved_percent": figure(100 * (1 - rate(other) / rate(ranks)) for ranks, other in pairs),
        **{name: figure(first[name] for first in firsts) for name in _OF_RUN},
        "auc_change": figure(ranks[0]["auc"] - other[0]["auc"] for ranks, other in pairs),
        **{
            f"best_{name}": figure(max(each[name] for each in first["evaluations"]) for first in firsts)
            for name in ("auc", "accuracy")
        },
        "evaluations": [first["evaluations"] for first in firsts],
        "read_sample_ms": found["phases_ms"].get("read_sample"),
        "input_to_device_ms": found["phases_ms"].get("input_to_device"),
        **{name: found[name] for name in ("resident_bytes", "service_resident_bytes", "gpu_busy", "gpu_bytes")},
    }


def table(rows: Mapping[str, Mapping[str, Any]], rounds: int) -> list[str]:
    """Returns the lines of the table; changes of the AUC are shown only if there were several rounds."""
    cells, best = list[dict[str, Any]](), 0.0
    for name, row in rows.items():
        sizes = {key.replace("bytes", "mb"): row[key] and row[key] / 1e6 for key in row if key.endswith("bytes")}
        change = row["auc_change"] if rounds > 1 else None
        mark = "*" if row["best_auc"].median > best else None
        best = max(best, row["best_auc"].median)
        cells.append({"setting": name, **row, **sizes, "auc_change": change, "mark": mark})
    return sides.markdown(_COLUMNS, cells)


def main(arguments: list[str] | None = None) -> None:
    parser = jobs.parser(__doc__, rows=200_000)
    parser.add_argument("--workers", type=int, default=2, help="number of workers; default 2")
    about = f"of {','.join(AXES)}; default all but the last"
    parser.add_argument("--axes", type=sides.words_of("axis", AXES), default=[*AXES[:-1]], help=about)
    about = "numbers of batches per step, of the axis of this name; default 1,2,5,10,20"
    parser.add_argument("--accumulation_steps", type=sides.integers, help=about)
    flags, on = parser.parse_args(arguments), figures.machine()
    workers = flags.workers
    missing = [BFLOAT16] if MIXED_PRECISION in flags.axes and not on["bfloat16"] else []
    with tempfile.TemporaryDirectory() as directory:
        setup = jobs.setup_with_data(flags, directory)
        every = [setup.job(DEFAULT, workers)] if flags.axes != [METHODS] else []
        of_methods = methods(setup) if METHODS in flags.axes else []
        for axis in flags.axes:
            if axis != METHODS:
                values = flags.accumulation_steps if axis == ACCUMULATION else None
                every += [job for job in variants(axis, setup, workers, values) if job.name not in missing]
        every = [evaluated(job) for job in (*every, *of_methods)]
        runs, errors = setup.measure(every)
    over = {job.name: runs.get(ONE) for job in of_methods}
    rows = {
        job.name: summarize(job, runs[job.name], over.get(job.name, runs.get(DEFAULT)))
        for job in every
        if job.name in runs
    }
    lacks = "this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)"
    notes = [f"{name} is left out: {lacks}" for name in missing]
    notes += ["Training AUC and accuracy cover the training examples, each scored before it is trained on."]
    notes += ["The methods compare with one worker, not with the default."] * (METHODS in flags.axes)
    notes += [figures.ONE_ROUND] * (setup.rounds == 1)
    results = {
        "experiment": setup.title(workers),
        "flags": setup.flags,
        "workers": workers,
        "rounds": setup.rounds,
        "settings": {**rows, **dict.fromkeys(missing)},
        "notes": notes,
    }
    lines = [
        f"{setup.title(workers)}; --scale_lr={setup.experiment.train.scale_lr}",
        "",
        *table(rows, setup.rounds),
        "",
        *notes,
    ]
    figures.report("settings", on, lines, results, errors)


if __name__ == "__main__":
    main()
