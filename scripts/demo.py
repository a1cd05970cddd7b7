"""The demo, end to end: generates a data set, trains on it, evaluates and exports; its last line is one JSON object.

`make demo` calls it in .venv. The data set is generated once and kept. The model is trained from the beginning each
time; if it was trained further or files were added since the last demo, the demo fails and removes nothing. `--remove`
removes the demo.

The last line has `workers`, `steps`, `examples` and `examples_per_sec` of the training, `auc`, `logloss` and `copc`
(clicks over predicted clicks, 1 if calibrated) on the test set, `oracle_auc` (the AUC of the true probabilities on the
test set, the best possible value), `model_dir` and `export_dir` as absolute paths, and `seconds`, the total wall time.

Environment: WORKERS, the number of workers; default 2.
"""

import json
import os
import pathlib
import shlex
import shutil
import signal
import sys
import sysconfig
import time

from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLAGFILE = "configs/demo.flags"
DEMO = pathlib.Path("demo")
RECORD = LocalPath(DEMO, ".made_by_demo.json")  # `files` of the last demo below DEMO; null while a demo runs.
DATA = DEMO / "data"
EXPORT = DEMO / "export"
STEP_TIMEOUT_S = 3600


def read_flag(flagfile, name):
    """Returns the value of `--name=value` in an absl flagfile; as in absl, the last line counts."""
    prefix = f"--{name}="
    lines = [line.strip() for line in pathlib.Path(flagfile).read_text(encoding="utf-8").splitlines()]
    values = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    if not values:
        raise UserError(f"{flagfile}: has no line {prefix}...; the demo needs it")
    return values[-1]


def read_json(path, *keys):
    """Returns the object in a JSON file; raises UserError if it lacks one of the keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from error
    return require(content, path, *keys)


def require(content, where, *keys):
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise UserError(f"{where}: expected an object with {', '.join(missing)}, got {json.dumps(content)}")
    return content


def last_json(lines, what, *keys):
    """Returns the JSON object in the last line of a command's stdout; raises UserError if it lacks one of the keys."""
    last = lines[-1] if lines else ""
    try:
        content = json.loads(last)
    except ValueError as error:
        raise UserError(f"{what}: expected a JSON object as the last line, got {last!r}") from error
    return require(content, f"{what}, last line", *keys)


def stream(what, *arguments):
    """Runs a command and prints its output; returns the lines of its stdout."""
    print(f"$ {shlex.join(map(str, arguments))}", flush=True)
    return child.run_command(arguments, what, STEP_TIMEOUT_S, show=lambda line: print(line, flush=True))


def make_data():
    """Generates the data set unless it is complete; the `_dataset.json` of each part is written last."""
    if all((DATA / part / "_dataset.json").exists() for part in ("train", "test")):
        print(f"demo: keeping the data set of an earlier run in {DATA}", flush=True)
        return
    trainer = [sys.executable, "-m", "ctr_trainer"]
    stream("generating the data set", *trainer, "convert", "--format=synthetic", f"--output={DATA}")


def remove_old(directory, what):
    """Removes a directory of an earlier run; raises UserError if it is outside demo/."""
    if not directory.exists():
        return
    if not directory.resolve().is_relative_to(DEMO.resolve()):
        raise UserError(f"{what} {directory} exists outside {DEMO}/: move it away to run the demo")
    refuse_changed(directory)
    print(f"demo: removing {directory}, the {what} of an earlier run", flush=True)
    shutil.rmtree(directory)


def refuse_changed(directory):
    """Raises UserError if a directory of the demo has a file that is not from the last demo; the message names it."""
    record = RECORD.read_json("remove demo/ yourself") if RECORD.exists() else {"files": []}
    known = record.get("files")
    new = [] if known is None else sorted(set(files_below(directory)) - set(known))
    if new:
        raise UserError(
            f"{new[0]} was not left there by the last demo, so {directory} is not removed: move it away to run the demo"
        )


def files_below(directory):
    """Returns the paths of the files below a directory of the demo, without hidden files and the record."""
    paths = [path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink()]
    return [str(path) for path in paths if not any(part.startswith(".") for part in path.parts)]


def remove_demo():
    """Removes DEMO."""
    if DEMO.exists():
        refuse_changed(DEMO)
        shutil.rmtree(DEMO)


def run_demo(workers):
    """Runs the demo; returns the dict of the last line."""
    start = time.monotonic()
    model_dir = pathlib.Path(read_flag(FLAGFILE, "model_dir"))
    make_data()
    oracle = read_json(DATA / "test" / "_dataset.json", "extra")["extra"]
    require(oracle, DATA / "test" / "_dataset.json", "oracle_auc")
    remove_old(model_dir, "model")
    RECORD.write_json({"files": None})

    horovodrun = pathlib.Path(sysconfig.get_path("scripts")) / "horovodrun"
    stream("training", horovodrun, "-np", workers, "./run.sh", f"--flagfile={FLAGFILE}", "--eval_data=")
    summary = model_dir / "train_summary.json"
    training = read_json(summary, "workers", "steps", "examples", "examples_per_sec")

    trainer = [sys.executable, "-m", "ctr_trainer"]
    evaluation = stream("evaluating", *trainer, "evaluate", f"--flagfile={FLAGFILE}")
    scores = last_json(evaluation, "evaluating", "auc", "logloss", "copc")
    export = stream("exporting", *trainer, "export", f"--flagfile={FLAGFILE}", f"--export_dir={EXPORT}")
    exported = last_json(export, "exporting", "export_dir")
    RECORD.write_json({"files": files_below(DEMO)})
    return {
        **{key: training[key] for key in ("workers", "steps", "examples", "examples_per_sec")},
        "auc": scores["auc"],
        "logloss": scores["logloss"],
        "copc": scores["copc"],
        "oracle_auc": oracle["oracle_auc"],
        "model_dir": os.path.abspath(model_dir),
        "export_dir": os.path.abspath(exported["export_dir"]),
        "seconds": round(time.monotonic() - start, 1),
    }


def main():
    # An exception makes `child.run_command` stop the workers.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.chdir(ROOT)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    workers = os.environ.get("WORKERS") or "2"
    try:
        if not (workers.isascii() and workers.isdigit() and int(workers) > 0):
            raise UserError(f"WORKERS={workers}: expected a whole number from 1 on")
        if sys.argv[1:] == ["--remove"]:
            remove_demo()
        else:
            print(json.dumps(run_demo(int(workers))))
    except UserError as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
