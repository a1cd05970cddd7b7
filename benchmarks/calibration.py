"""COPC (clicks over predicted clicks, 1 where calibrated) at the end of a run, by schedule. The last line is JSON.

The demo's data, MovieLens and Adult as their flagfiles of DeepFM in configs/ say, and the head of Criteo, each trained
on 1 and 2 workers with several seeds under each of `VARIANTS`, and tested on examples that neither training nor the
choice of an epoch has seen. A table shows per data, workers and variant the COPC of each seed, the mean AUC and log
loss; the target is a COPC from 0.97 to 1.03 in each run, or within two of its standard errors where the test data are
too few for that, and no AUC lost.

Each run is a line of --results; what stands there is not run again.

Example: python benchmarks/calibration.py --results=calibration.jsonl
         python benchmarks/calibration.py --data=demo --workers=1 --seeds=1 --variants=default,constant
         python benchmarks/calibration.py --data=criteo --flags='--epochs=5 --embedding_initial_accumulator=1e-4'
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import accuracy_data

from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import FILE
from ctr_trainer.features.spec import FeatureSpec

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Flagfile, and flags behind it.
DATA = {
    "demo": ("demo", ()),
    "movielens": ("movielens_deepfm", ()),
    "adult": ("adult_deepfm", ()),
    "criteo": ("criteo_deepfm", ("--epochs=20", "--embedding_initial_accumulator=1e-2")),
}
CONSTANT = ("--lr_schedule=constant", "--embedding_lr_schedule=constant", "--decay_rate=0", "--plateau_patience=0")
VARIANTS = {
    "default": (),
    "constant": CONSTANT,
    "linear": ("--lr_schedule=linear",),
    "linear_constant": ("--lr_schedule=linear", "--embedding_lr_schedule=constant"),
    "linear_same": ("--lr_schedule=linear", "--embedding_lr_schedule=same"),
}
RANGE = (0.97, 1.03)
JOB_SECONDS = 36000


def main():
    flags = _flags()
    work = pathlib.Path(flags.work)
    work.mkdir(parents=True, exist_ok=True)
    results = pathlib.Path(flags.results or work / "calibration.jsonl")
    for workers in flags.workers:
        there = _lines(results)
        runs = []
        for data, seed, variant in itertools.product(flags.data, flags.seeds, flags.variants):
            key = dict(data=data, workers=workers, seed=seed, variant=f"{variant} {flags.flags}".strip())
            if not any(key.items() <= line.items() for line in there):
                more = (*VARIANTS[variant], *flags.flags.split())
                runs.append({"key": key, **_run(data, more, seed, flags.real_data, work)})
        if runs:
            _start(runs, workers, results, work)
    variants = [f"{variant} {flags.flags}".strip() for variant in flags.variants]
    selected = [line for line in _lines(results) if line["seed"] in flags.seeds and line["variant"] in variants]
    selected = [line for line in selected if line["data"] in flags.data]
    found = summary(selected)
    print(table(found))
    print(json.dumps(found))


def _run(data, variant, seed, real_data, work):
    """-> the `flags` of a run, those of the `variant` behind the others, and its `test` data."""
    train, valid, test = _parts(data, real_data, work)
    flagfile, more = DATA[data]
    flags = [f"--flagfile={ROOT / 'configs' / flagfile}.flags", f"--train_data={train}", f"--eval_data={valid}"]
    return {"flags": [*flags, f"--seed={seed}", "--threads=1", *more, *variant], "test": str(test)}


def _parts(data, real_data, work):
    """-> the paths of the data to train on, to choose an epoch by, and to test on; converted at the first call."""
    if data in ("movielens", "adult"):
        parts = accuracy_data.prepare({"movielens": "movielens-random"}.get(data, data), real_data, work)
        return parts.train, parts.valid, parts.test
    output = work / data
    if not (output / "test" / FILE).is_file():
        if data == "demo":
            convert("synthetic", None, output, FeatureSpec.load(accuracy_data.SPECS / "demo.toml"), seed=1)
        else:
            source = str(pathlib.Path(real_data) / "criteo" / "train_head.tsv")
            spec = FeatureSpec.load(accuracy_data.SPECS / "criteo.toml")
            convert("criteo", source, output, spec, split="random:0.7,0.3")
    return output / "train", output / "test", output / "test"


def _start(runs, workers, results, work):
    file = work / f"runs-{workers}.json"
    file.write_text(json.dumps(runs))
    launch = ["horovodrun", "-np", str(workers), "--gloo"] if workers > 1 else []
    command = [*launch, sys.executable, ROOT / "benchmarks" / "calibration_run.py"]
    command += [f"--results={results}", f"--runs={file}", f"--work={work}"]
    environment = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        **dict.fromkeys(("CTR_TRAINER_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    }
    # What the runs print is no part of this program's output, whose last line is JSON.
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=sys.stderr, timeout=JOB_SECONDS)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}")


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def summary(lines):
    """-> list of dicts, one of each data, workers and variant, in the order of the lines.

    `copc`: of each seed; `copc_error`: its standard error by the size of the test data; `met`: whether each is within
    `RANGE`, or two standard errors of 1; `auc`, `logloss`: means over the seeds; `auc_spread`: highest minus lowest.
    `best_copc` and `best_auc` are of the epoch chosen by validation, where one is.
    """
    groups = {}
    for line in lines:
        groups.setdefault((line["data"], line["workers"], line["variant"]), []).append(line)
    found = []
    for (data, workers, variant), runs in groups.items():
        runs.sort(key=lambda line: line["seed"])
        error = runs[0]["copc_error"]
        slack = max(0.0, 2 * error - (RANGE[1] - 1))
        entry = dict(data=data, workers=workers, variant=variant)
        entry |= dict(copc=[run["copc"] for run in runs], copc_error=error)
        entry["met"] = all(RANGE[0] - slack <= value <= RANGE[1] + slack for value in entry["copc"])
        aucs = [run["auc"] for run in runs]
        entry |= dict(auc=round(statistics.mean(aucs), 5), auc_spread=round(max(aucs) - min(aucs), 5))
        entry["logloss"] = round(statistics.mean(run["logloss"] for run in runs), 5)
        if "best_auc" in runs[0]:
            entry["best_copc"] = [run["best_copc"] for run in runs]
            entry["best_auc"] = round(statistics.mean(run["best_auc"] for run in runs), 5)
        found.append(entry)
    return found


def table(found):
    """-> Markdown."""
    rows = [
        "| data | workers | schedule | COPC | its error | AUC | spread | log loss | best: COPC | AUC |",
        f"|{'---|' * 10}",
    ]
    for entry in sorted(found, key=lambda entry: (entry["data"], entry["workers"])):
        texts = [entry["data"], str(entry["workers"]), entry["variant"], _list(entry["copc"])]
        texts += [f"{entry['copc_error']:.3f}", *(f"{entry[name]:.4f}" for name in ("auc", "auc_spread", "logloss"))]
        texts += [_list(entry["best_copc"]), f"{entry['best_auc']:.4f}"] if "best_auc" in entry else ["", ""]
        rows.append(f"| {' | '.join(texts)} |")
    return "\n".join(rows)


def _list(values):
    return ", ".join(f"{value:.3f}" for value in values)


def _flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--real_data", default=accuracy_data.default_directory(), help="with movielens/, adult/, criteo/"
    )
    parser.add_argument("--work", default=pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_calibration")
    parser.add_argument("--results", help="JSON lines; default: calibration.jsonl below --work")
    parser.add_argument("--flags", default="", help="more flags of each run, as '--model=lr --epochs=5'")
    choices = dict(data=tuple(DATA), workers=(1, 2), seeds=(1, 2, 3), variants=tuple(VARIANTS))
    for name, values in choices.items():
        kind = type(values[0])
        default = ("default", "constant") if name == "variants" else values
        parser.add_argument(
            f"--{name}",
            type=lambda text, kind=kind: tuple(kind(part) for part in text.split(",")),
            default=default,
            help=",".join(map(str, values)),
        )
    return parser.parse_args()


if __name__ == "__main__":
    main()
