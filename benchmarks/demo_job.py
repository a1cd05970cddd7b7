"""The demo's job of two workers, as a user runs it, for the benchmarks that compare its flags."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
JOB = ("horovodrun", "-np", "2", "--gloo", str(ROOT / "run.sh"), f"--flagfile={ROOT}/configs/demo.flags")
_TIMEOUT_S = 1800


def demo_data(directory):
    """-> the demo's data set below a directory, 2 M rows as `make demo` makes them; made if it is not there."""
    data = pathlib.Path(directory, "demo")
    if not (data / "test" / "_dataset.json").exists():
        call(sys.executable, "-m", "ctr_trainer", "convert", "--format=synthetic", f"--output={data}")
    return data


def command(data, model, *flags):
    """-> the command that trains a model on the demo's data, without an evaluation."""
    return (*JOB, f"--train_data={data}/train", "--eval_data=", f"--model_dir={model}", *flags)


def train(data, model, *flags):
    """-> (the summary of a training, what it wrote to standard error). An earlier model there is removed."""
    shutil.rmtree(model, ignore_errors=True)
    log = call(*command(data, model, *flags))
    return json.loads(pathlib.Path(model, "train_summary.json").read_text(encoding="utf-8")), log


def environment():
    """-> that of a job: this package, and the programs beside this Python."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": path}


def call(*command):
    """-> what a command has written to standard error; if it fails, the end of that ends this program."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stderr
