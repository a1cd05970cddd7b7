"""What faults cost a job under `launch`: kills, a lost host, checkpoints, ends of all kinds; its last line is JSON.

    python benchmarks/faults.py --rows=600000 --rounds=3 --kills=50 --ends=20

The job is the demo's, of two workers. `seconds_to_train_again` is the largest of the medians by kind of loss, from the
kill to the log line that the launcher writes when a step is done again; the kills of `--rounds` meet a job whose next
workers are ready, those of `--kills` come at random. A part that is left out (`--parts`), or that this machine does not
allow, is null; so is one that failed, which `failed` names.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import checkpoint_cost
import convert_engines
import faults_ends
import faults_hosts
from faults_job import ROOT, TIMEOUT_S, FaultyJob

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.messages.errors import UserError
from tests.hosts.rows import names, trained

PARTS = ("kills", "random", "hosts", "cost", "ends", "engines")
KILLS = {
    "worker": lambda job: [job.worker(1)],
    "service": lambda job: job.services(),
    "both": lambda job: [job.worker(1), *job.services()],
}
WORKERS = 2
# A job starts the workers of its next start after 10 s, and they import for some more.
READY_SECONDS = 10.0


def training_flags(data, *more):
    """-> list of the flags of the demo's experiment."""
    return [
        f"--train_data={data / 'train'}",
        f"--eval_data={data / 'test'}",
        "--model=deepfm",
        "--embedding_initial_accumulator=1e-3",
        "--log_steps=20",
        "--save_checkpoints_secs=10",
        *more,
    ]


def kill(job, kind):
    """Kills the processes of a kind. -> the seconds until the job trains again"""
    before, at = job.count("training again after"), time.time()
    for process in KILLS[kind](job):
        process.kill()
    return job.wait_for("training again after", before + 1) - at


def timed_kills(directory, data, rounds):
    """-> (by kind of kill, list of the seconds to train again; the most seconds of training lost)."""
    found, lost = {kind: [] for kind in KILLS}, []
    for number in range(rounds):
        for kind in KILLS:
            model_dir = directory / f"kill-{kind}-{number}"
            flags = training_flags(data, "--epochs=0", "--max_steps=1000000", f"--model_dir={model_dir}")
            with FaultyJob(["-np", WORKERS, "--", *flags], model_dir) as job:
                job.wait_for("saved the checkpoint of step")
                time.sleep(READY_SECONDS + random.uniform(10.0, 20.0))
                found[kind].append(round(kill(job, kind), 1))
                lost.append(_seconds_lost(job))
            print(f"kill -9 of {kind}: trains again after {found[kind][-1]} s, lost {lost[-1]} s", flush=True)
    return found, max(lost, default=None)


def _seconds_lost(job):
    line = next(line for _, line in reversed(job._lines) if " s of training; going on" in line)
    return float(line.partition(" s of training; going on")[0].rpartition(" ")[2])


def random_kills(directory, data, kills, batch_seconds):
    """Kills at random while an epoch is trained. -> dict of what became of its rows and of its AUC."""
    model_dir, seen = directory / "random", directory / "seen"
    seen.mkdir()
    flags = training_flags(data, "--log_steps=1", f"--model_dir={model_dir}")
    seconds, done = [], 0
    with FaultyJob(["-np", WORKERS, "--max_restarts", 20, "--", *flags], model_dir, seen, batch_seconds) as job:
        job.wait_for("saved the checkpoint of step")
        while done < kills and job.process.poll() is None:
            time.sleep(random.uniform(2.0, 20.0))
            try:
                seconds.append(round(kill(job, random.choice(list(KILLS))), 1))
            except (RuntimeError, AttributeError):
                break  # The training has just ended.
            done += 1
            print(f"random kill {done} of {kills}: trains again after {seconds[-1]} s", flush=True)
        status = job.finish()
        if status:
            raise RuntimeError(f"the job of random kills ended with status {status}:\n{job.tail()}")
        summary = job.summary()
    restarts = summary.get("restarts", [])
    rows = trained(seen, restarts, summary["global_step"])
    batches = BatchReader(str(data / "train"), 10_000, shuffle=False, epochs=1)
    expected = collections.Counter(name for batch in batches for name in names(batch))
    undisturbed = directory / "undisturbed"
    flags_of_other = training_flags(data, f"--model_dir={undisturbed}")
    with FaultyJob(["-np", WORKERS, "--", *flags_of_other], undisturbed) as other:
        if other.finish():
            raise RuntimeError(other.tail())
    return {
        "random_kills": done,
        "random_seconds": seconds,
        "rows_twice": sum((rows - expected).values()),
        "rows_missing": sum((expected - rows).values()),
        "auc_minus_undisturbed": round(auc(flags) - auc(flags_of_other), 5),
        "seconds_of_steps_lost_at_most": max((each["seconds_lost"] for each in restarts), default=0.0),
    }


def auc(flags):
    """-> the AUC of a model on the test data."""
    command = [sys.executable, "-m", "ctr_trainer", "evaluate", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])["auc"]


def make_data(directory, rows):
    """-> the directory of the demo's data with so many rows."""
    data = directory / "data"
    command = ["convert", "--format=synthetic", f"--rows={rows}", f"--output={data}"]
    subprocess.run([sys.executable, "-m", "ctr_trainer", *command], check=True, timeout=TIMEOUT_S, cwd=ROOT)
    return data


def measure(directory, flags):
    """-> dict, the result."""
    data = make_data(directory, flags.rows)
    result = dict.fromkeys(
        (
            "seconds_to_train_again",
            "seconds_by_loss",
            "seconds_of_steps_lost_at_most",
            "random_kills",
            "rows_twice",
            "rows_missing",
            "auc_minus_undisturbed",
            "hosts_test",
            "checkpoint_cost_percent",
            "left_behind",
            "convert_two_cores_over_one",
            "spark_equals_local",
        )
    )
    medians, lost, failed = {}, [], []

    def kills():
        seconds, most = timed_kills(directory, data, flags.rounds)
        medians.update({kind: statistics.median(each) for kind, each in seconds.items()})
        lost.append(most)

    def at_random():
        result.update(random_kills(directory, data, flags.kills, flags.batch_seconds))
        lost.append(result["seconds_of_steps_lost_at_most"])

    def hosts():
        taken = []
        for number in range(flags.rounds):
            (place := directory / f"hosts-{number}").mkdir()
            try:
                more = ["--epochs=0", "--max_steps=1000000"]
                taken.append(faults_hosts.take_a_host_and_give_it_back(place, training_flags(data, *more)))
            except UserError as error:
                print(f"no hosts: {error}", flush=True)
                break
            print(f"host taken: trains again after {taken[-1]:.1f} s", flush=True)
        if taken:
            medians["host"], result["hosts_test"] = round(statistics.median(taken), 1), True

    def cost():
        result["checkpoint_cost_percent"], _ = checkpoint_cost.checkpoint_cost_percent(directory, flags.rounds)

    def ends():
        result["left_behind"] = len(faults_ends.left_behind(directory / "ends", training_flags(data), flags.ends))

    def convert():
        result.update(convert_engines.convert_two_cores_over_one(directory))
        result["spark_equals_local"] = convert_engines.spark_equals_local(directory)

    for name, measure_part in zip(PARTS, (kills, at_random, hosts, cost, ends, convert), strict=True):
        if name not in flags.parts:
            continue
        try:
            measure_part()
        except Exception:  # What the other parts have found, or will find, counts all the same.
            traceback.print_exc()
            failed.append(name)
    result["seconds_by_loss"] = medians
    result["seconds_to_train_again"] = max(medians.values(), default=None)
    result["seconds_of_steps_lost_at_most"] = max(filter(None, lost), default=None)
    return {**result, "failed": failed, "load": round(os.getloadavg()[0], 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="rows of the demo's data")
    parser.add_argument("--rounds", type=int, default=3, help="times that each kind of loss and the cost are measured")
    parser.add_argument("--kills", type=int, default=50, help="kills at random")
    parser.add_argument("--ends", type=int, default=20, help="jobs that are ended in all ways")
    parser.add_argument(
        "--batch_seconds", type=float, default=1.5, help="pace of the job of random kills: it must outlast them"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"what is measured, of {','.join(PARTS)}")
    flags = parser.parse_args()
    flags.parts = flags.parts.split(",")
    if unknown := set(flags.parts) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        print(json.dumps(measure(pathlib.Path(directory), flags)))


if __name__ == "__main__":
    main()
