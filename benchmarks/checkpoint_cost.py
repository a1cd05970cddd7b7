"""What a delta checkpoint every 10 s costs the demo's job, beside none. Prints one JSON object last.

python benchmarks/checkpoint_cost.py --rounds=5
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Epochs enough for several checkpoints. Both save at the end, so what that takes is in neither's rate.
FLAGS = ("--eval_data=", "--epochs=3")
NONE, EVERY_10_S = ("--save_checkpoints_steps=0",), ("--save_checkpoints_secs=10",)


def checkpoint_cost_percent(directory, rounds):
    """-> (by how many percent the job is slower with checkpoints, the median over the rounds; what each round had).

    A round is a job without checkpoints and one with them, by turns the one first and the other.

    Args:
      directory: with the demo's data set `demo`, which is made if it is not there; the models are made below it.
      rounds: at least 1.

    Returns:
      (float, list of dicts of `percent`, `none`, `every_10_s` (examples/s), `checkpoints`, `checkpoint_seconds` and
      `phase_percent`, by how many percent they lengthen the training by its own clock)
    """
    data = pathlib.Path(directory, "demo")
    if not (data / "test" / "_dataset.json").exists():
        _call(sys.executable, "-m", "ctr_trainer", "convert", "--format=synthetic", f"--output={data}")
    found = []
    for number in range(rounds):
        pair = {}
        for name, flags in [("none", NONE), ("every_10_s", EVERY_10_S)][:: -1 if number % 2 else 1]:
            pair[name] = _train(data / "train", pathlib.Path(directory, f"model-{name}"), flags)
        rates = {name: summary["examples_per_sec"] for name, (summary, _) in pair.items()}
        summary, checkpoints = pair["every_10_s"]
        found.append(
            {
                "percent": round(100 * (rates["none"] / rates["every_10_s"] - 1), 2),
                **{name: round(rate) for name, rate in rates.items()},
                "checkpoints": checkpoints,
                "checkpoint_seconds": (seconds := summary["phase_seconds"]["checkpoint"]["mean"]),
                "phase_percent": round(100 * seconds / (summary["seconds"] - seconds), 2),
            }
        )
        print(f"round {number + 1} of {rounds}: {json.dumps(found[-1])}", file=sys.stderr, flush=True)
    return round(statistics.median(each["percent"] for each in found), 2), found


def _train(data, model, flags):
    """-> (the summary of a training, how many checkpoints it has written)."""
    shutil.rmtree(model, ignore_errors=True)
    job = ["horovodrun", "-np", "2", "--gloo", str(ROOT / "run.sh"), f"--flagfile={ROOT}/configs/demo.flags"]
    log = _call(*job, f"--train_data={data}", f"--model_dir={model}", *FLAGS, *flags)
    summary = json.loads((model / "train_summary.json").read_text(encoding="utf-8"))
    return summary, log.count("saved the checkpoint of step") // 2  # Each rank says so.


def _call(*command):
    """-> what the command has written to standard error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of jobs; about 3 minutes each on two cores")
    parser.add_argument("--directory", help="where the data and the models go; a new one that is removed, by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        percent, rounds = checkpoint_cost_percent(given.directory or temporary, given.rounds)
    print(json.dumps({"checkpoint_cost_percent": percent, "rounds": rounds}))


if __name__ == "__main__":
    main()
