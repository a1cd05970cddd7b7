"""Measures how much time and data a job under `launch` loses by kills. The last line is JSON.

    python benchmarks/faults.py --rows=600000 --rounds=3 --kills=50

The job is the demo's, of two workers. `seconds_to_train_again` is the largest of the medians by kind of loss, from the
kill to the log line that the launcher writes when a step is done again. The kills of `--rounds` meet a job whose next
workers are ready; the kills of `--kills` come at random. The keys of a part that is left out (`--parts`) or that failed
are null; `failed` names it.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence

import psutil

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.ranks.notices import ATTEMPT
from tests.hosts.rows import names, trained

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Makes each worker write the names of the rows that it reads.
SITE = ROOT / "tests" / "hosts" / "site"
TIMEOUT_S = 900
PARTS = ("kills", "random")
KILLS = {
    "worker": lambda job: [job.worker(1)],
    "service": lambda job: job.processes("ctr_trainer", "serve"),
    "both": lambda job: [job.worker(1), *job.processes("ctr_trainer", "serve")],
}
WORKERS = 2
# A job starts its next workers after 10 s, and they take some time for their imports.
READY_SECONDS = 10.0


class FaultyJob:
    """A running `launch`; leaving the block ends it.

    Args:
      arguments: the arguments of `launch`.
      model_dir: directory of the training.
      seen: directory for the names of the rows that each start reads, or None.
      batch_seconds: time that a worker waits before each batch, so that the job outlasts its faults.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        model_dir: str | os.PathLike[str],
        seen: pathlib.Path | None = None,
        batch_seconds: float = 0.0,
    ) -> None:
        self.model_dir, self._lines, self._changed = pathlib.Path(model_dir), [], threading.Condition()
        path = [str(SITE)] * bool(seen) + [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        more = {"ROWS_SEEN": str(seen), "BATCH_SECONDS": str(batch_seconds)} if seen else {}
        line = [sys.executable, "-m", "ctr_trainer", "launch", *map(str, arguments)]
        self.process = subprocess.Popen(
            line,
            env={**os.environ, **more, "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, text: str, times: int = 1, seconds: float = TIMEOUT_S) -> float:
        """Waits until `times` lines of the output have a text, and returns the Unix time of the last one."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(found := [at for at, line in self._lines if text in line]) < times:
                if self._lines and self._lines[-1][1] is _END:
                    raise RuntimeError(f"the job ended before {text!r} came:\n{self.tail()}")
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    raise TimeoutError(f"{text!r} did not come within {seconds} s:\n{self.tail()}")
        return found[times - 1]

    def count(self, text: str) -> int:
        """Returns the number of lines of the output with a text."""
        return sum(text in line for _, line in list(self._lines))

    def tail(self, lines: int = 30) -> str:
        """Returns the end of the output."""
        return "\n".join(line for _, line in list(self._lines)[-lines:])

    def worker(self, rank: int) -> psutil.Process | None:
        """Returns the process of a rank that trains, or None."""
        held = []
        for process in self.processes("ctr_trainer.launch.worker"):
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if environment.get("HOROVOD_RANK") == str(rank):
                    held.append((int(environment[ATTEMPT].partition(".")[2]), process))
        return min(held, default=(0, None), key=lambda each: each[0])[1]

    def processes(self, *module: str) -> list[psutil.Process]:
        """Returns its processes of `python -m MODULE`, with the words that follow."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[2 : 2 + len(module)] == [*module] and self._is_ours(process):
                    found.append(process)
        return found

    def left(self) -> list[psutil.Process]:
        """Returns the running processes that it has started."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process):
        with contextlib.suppress(psutil.Error, OSError):
            return ATTEMPT in process.environ() and str(self.model_dir) in " ".join(process.cmdline())
        return False

    def summary(self) -> dict:
        """Returns the training's summary."""
        return json.loads((self.model_dir / "train_summary.json").read_text())

    def _read(self):
        for line in self.process.stdout:
            self._add(line.rstrip("\n"))
        self._add(_END)

    def _add(self, line):
        with self._changed:
            self._lines.append((time.time(), line))
            self._changed.notify_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        for process in [self.process, *self.left()]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()


_END = "(the end of the output)"


def training_flags(data: pathlib.Path, *more: str) -> list[str]:
    """Returns the flags of the demo's experiment."""
    return [
        f"--train_data={data / 'train'}",
        f"--eval_data={data / 'test'}",
        "--model=deepfm",
        "--recipe=none",
        "--embedding_initial_accumulator=1e-3",
        "--log_steps=20",
        "--save_checkpoints_secs=10",
        *more,
    ]


def kill(job: FaultyJob, kind: str) -> float:
    """Kills the processes of a kind, and returns the seconds until the job trains again."""
    before, at = job.count("training again after"), time.time()
    for process in KILLS[kind](job):
        process.kill()
    return job.wait_for("training again after", before + 1) - at


def timed_kills(
    directory: pathlib.Path, data: pathlib.Path, rounds: int
) -> tuple[dict[str, list[float]], float | None]:
    """Returns the seconds until the job trains again by kind of kill, and the most seconds of training lost."""
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


def _seconds_lost(job: FaultyJob) -> float:
    line = next(line for _, line in reversed(job._lines) if " s of training; resuming" in line)
    return float(line.partition(" s of training; resuming")[0].rpartition(" ")[2])


def random_kills(directory: pathlib.Path, data: pathlib.Path, kills: int, batch_seconds: float) -> dict:
    """Kills at random while an epoch is trained, and returns the figures of its rows and its AUC."""
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
        status = job.process.wait(TIMEOUT_S)
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
        if other.process.wait(TIMEOUT_S):
            raise RuntimeError(other.tail())
    return {
        "random_kills": done,
        "random_seconds": seconds,
        "rows_twice": sum((rows - expected).values()),
        "rows_missing": sum((expected - rows).values()),
        "auc_minus_undisturbed": round(evaluated(flags)["auc"] - evaluated(flags_of_other)["auc"], 5),
        "seconds_of_steps_lost_at_most": max((each["seconds_lost"] for each in restarts), default=0.0),
    }


def evaluated(flags: list[str]) -> dict[str, float]:
    """Returns what `evaluate` prints of a model."""
    command = [sys.executable, "-m", "ctr_trainer", "evaluate", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def make_data(directory: pathlib.Path, rows: int) -> pathlib.Path:
    """Makes the demo's data, and returns its directory."""
    data = directory / "data"
    command = ["convert", "--format=synthetic", f"--rows={rows}", f"--output={data}"]
    subprocess.run([sys.executable, "-m", "ctr_trainer", *command], check=True, timeout=TIMEOUT_S, cwd=ROOT)
    return data


def measure(directory: pathlib.Path, flags: argparse.Namespace) -> dict:
    data = make_data(directory, flags.rows)
    result = dict.fromkeys(("random_kills", "rows_twice", "rows_missing", "auc_minus_undisturbed"))
    medians, lost, failed = {}, [], []
    for name in flags.parts:
        try:
            if name == "kills":
                seconds, most = timed_kills(directory, data, flags.rounds)
                medians = {kind: statistics.median(each) for kind, each in seconds.items()}
                lost.append(most)
            else:
                result |= random_kills(directory, data, flags.kills, flags.batch_seconds)
                lost.append(result["seconds_of_steps_lost_at_most"])
        except Exception:  # The results of the other part count all the same.
            traceback.print_exc()
            failed.append(name)
    result["seconds_by_loss"] = medians
    result["seconds_to_train_again"] = max(medians.values(), default=None)
    result["seconds_of_steps_lost_at_most"] = max(filter(None, lost), default=None)
    return {**result, "failed": failed, "load": round(os.getloadavg()[0], 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="rows of the demo's data")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each kind")
    parser.add_argument("--kills", type=int, default=50, help="number of random kills")
    parser.add_argument("--batch_seconds", type=float, default=1.5, help="seconds per batch during the random kills")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to measure, of {','.join(PARTS)}")
    flags = parser.parse_args()
    flags.parts = flags.parts.split(",")
    if unknown := set(flags.parts) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        print(json.dumps(measure(pathlib.Path(directory), flags)))


if __name__ == "__main__":
    main()
