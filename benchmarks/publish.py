"""What live rows cost and give: the demo's job publishes while it trains, a reader follows. The last line is JSON.

| key of the last line | |
|---|---|
| `training_slowdown_percent` | the demo's job with `--publish=DIR` against the same without, the median of the rounds |
| `freshness_p99_secs` | from a row's step until a reader of the directory has it, with `--publish_secs=2` |
| `served_auc_minus_trained` | the AUC of the server's answers over the test split, minus that of `evaluate` |
| `score_p99_ms` | {`directory`, `cluster`} of one example, 200 requests a second, see `score.py` |
| `rows_published_per_sec_core`, `plain_pipelined_set_per_sec_core`, `bytes_per_row_served` | see `publish_rows.py` |
| `kill_runs`, `lost`, `doubled`, `mixed` | see `publish_kills.py` |

A part that is left out (`--parts`), or that this machine does not allow, is null.

Example: python benchmarks/publish.py --rounds=3 --kills=100
         python benchmarks/publish.py --parts=slowdown,freshness --rounds=1
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import demo_job
import numpy as np
import served_auc

from ctr_trainer.publication import records
from ctr_trainer.publication.open_reader import open_reader
from ctr_trainer.settings.embedding_config import EmbeddingConfig

PARTS = ("slowdown", "freshness", "auc", "score", "rows", "kills")
HERE = pathlib.Path(__file__).resolve().parent
EPOCHS = "--epochs=3"
_START_S, _JOB_S, _POLL_S = 300.0, 1800.0, 0.1
_GRID_S = 0.05


def slowdown(directory, rounds):
    """-> (by how many percent publishing slows the demo's job, the median; what each round had).

    A round is a job that publishes every 10 s to a directory and one that does not, by turns the one first and the
    other.
    """
    data, found = demo_job.demo_data(directory), []
    publish = f"--publish={directory}/slowdown-publication"
    for number in range(rounds):
        rates = {}
        for name, flags in [("without", ()), ("publishing", (publish,))][:: -1 if number % 2 else 1]:
            summary, _ = demo_job.train(data, f"{directory}/{name}", EPOCHS, *flags)
            rates[name] = round(summary["examples_per_sec"])
        found.append({"percent": round(100 * (rates["without"] / rates["publishing"] - 1), 2), **rates})
        print(f"slowdown, round {number + 1} of {rounds}: {json.dumps(found[-1])}", file=sys.stderr, flush=True)
    return round(statistics.median(each["percent"] for each in found), 2), found


def freshness(directory):
    """-> the 99th percentile of the seconds from a row's step until a reader has it, over all times of a training.

    A step's rows wait up to `--sync_steps` steps for the sync that takes them to the service, which is done that many
    steps later at most. So twice that time is added to what is seen: a record says when the service's rows were taken.
    """
    data, publication = demo_job.demo_data(directory), f"{directory}/fresh-publication"
    log = pathlib.Path(directory, "fresh.log")
    job = demo_job.command(data, f"{directory}/fresh", EPOCHS, f"--publish={publication}", "--publish_secs=2")
    with open(log, "w") as file, subprocess.Popen(job, stderr=file, stdout=file, env=demo_job.environment()) as process:
        try:
            seen = _followed(publication, process)
        finally:
            process.terminate()
    if process.returncode:
        raise SystemExit(f"the job ended with {process.returncode}:\n{log.read_text()[-3000:]}")
    taken, visible = np.array(seen).T
    steps = np.arange(taken[0], taken[-1], _GRID_S)
    waits = visible[np.searchsorted(taken, steps)] - steps
    summary = json.loads(pathlib.Path(directory, "fresh", "train_summary.json").read_text(encoding="utf-8"))
    waits += 2 * EmbeddingConfig().sync_steps * summary["seconds"] / summary["steps"]
    print(f"freshness: {len(seen)} epochs, median {np.median(waits):.2f} s, most {waits.max():.2f} s", file=sys.stderr)
    return round(float(np.percentile(waits, 99)), 2)


def _followed(publication, process):
    """-> list of (time up to which all training is in, time at which a reader had it), of each record, until the end"""
    end = time.monotonic() + _START_S
    while records.read_publication(publication) is None:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"no publication in {publication} after {_START_S:g} s, or the job has ended before it")
        time.sleep(_POLL_S)
    reader, seen, end = open_reader(publication), [], time.monotonic() + _JOB_S
    try:
        while True:
            ended = process.poll() is not None
            newer = reader.refresh()
            if newer is not None:
                reader.advance()
                seen.append((newer.time, time.time()))
            elif ended:
                return seen
            elif time.monotonic() > end:
                raise SystemExit(f"the job has not ended within {_JOB_S:g} s")
            else:
                time.sleep(_POLL_S)
    finally:
        reader.close()


def figures_of(script, *flags):
    """-> the JSON of another benchmark's last line."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *flags], env=demo_job.environment(), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{script} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the default's, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of jobs for the slowdown; minutes each")
    parser.add_argument("--kills", type=int, default=100, help="kills of publisher, primary and reader")
    parser.add_argument("--directory", help="where data and models go; a new one that is removed, by default")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    names = ["training_slowdown_percent", "freshness_p99_secs", "served_auc_minus_trained", "score_p99_ms"]
    names += ["rows_published_per_sec_core", "plain_pipelined_set_per_sec_core", "bytes_per_row_served"]
    found = dict.fromkeys([*names, "kill_runs", "lost", "doubled", "mixed"])
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or temporary
        if "slowdown" in parts:
            found["training_slowdown_percent"], found["slowdown_rounds"] = slowdown(directory, given.rounds)
        if "freshness" in parts:
            found["freshness_p99_secs"] = freshness(directory)
        if "auc" in parts:
            found |= served_auc.measure(directory)
        if "score" in parts:
            score = figures_of("score.py")
            found["score_p99_ms"] = {where: score.get(f"score_p99_ms_{where}") for where in ("directory", "cluster")}
        if "rows" in parts:
            found |= figures_of("publish_rows.py")
        if "kills" in parts:
            found |= figures_of("publish_kills.py", f"--runs={given.kills}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
