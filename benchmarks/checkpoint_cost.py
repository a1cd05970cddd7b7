"""What a delta checkpoint every 10 s costs the demo's job, beside none. Prints one JSON object last.

python benchmarks/checkpoint_cost.py --rounds=5
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import demo_job

# Epochs enough for several checkpoints. Both save at the end, so what that takes is in neither's rate.
FLAGS = ("--epochs=3",)
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
    data, found = demo_job.demo_data(directory), []
    for number in range(rounds):
        pair = {}
        for name, flags in [("none", NONE), ("every_10_s", EVERY_10_S)][:: -1 if number % 2 else 1]:
            pair[name] = _train(data, pathlib.Path(directory, f"model-{name}"), flags)
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
    summary, log = demo_job.train(data, model, *FLAGS, *flags)
    return summary, log.count("saved the checkpoint of step")


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
