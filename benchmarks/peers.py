"""Our job beside those of other libraries on W1: equal data, model, batch, threads and cores, all in turn.

Prints a table, and leaves it in --output with JSON and a PNG. A side that is not installed has a row that says so.

Examples: python benchmarks/peers.py --workers=1,2
          python benchmarks/peers.py --peer_python=tfra=/envs/tfra/bin/python
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from peer import write_batches

from ctr_trainer.bench import chart, machine, workload
from ctr_trainer.bench.calibration import lone_worker
from ctr_trainer.bench.figures import cell, figure, format_table
from ctr_trainer.bench.jobs import Job, environment, require_horovodrun, run_rounds
from ctr_trainer.bench.results import write_report
from ctr_trainer.files import outputs
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import command, hardware

_OURS = "ours"
_OF_W1 = (
    "--model=deepfm",
    f"--hidden_units={','.join(map(str, workload.HIDDEN_UNITS))}",
    "--optimizer=adagrad",
    f"--learning_rate={workload.LEARNING_RATE}",
    f"--dense_accumulator={workload.INITIAL_ACCUMULATOR}",
    "--embedding_optimizer=adagrad",
    f"--embedding_learning_rate={workload.LEARNING_RATE}",
    f"--embedding_initial_accumulator={workload.INITIAL_ACCUMULATOR}",
    f"--embedding_stddev={workload.STDDEV}",
    "--scale_lr=none",
)
# How several workers of ours exchange: the dense gradients each step, or all every 30 steps; rows shared or served.
_WAYS = {
    "every step": ("--embedding_service=shared",),
    "30 steps": ("--embedding_service=shared", "--dense_sync_steps=30"),
    "30 steps, service": ("--embedding_service=auto", "--dense_sync_steps=30", "--sync_steps=30"),
}
_CHECK_SECONDS = 60
_HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another library.

    Attributes:
      title: in the table.
      script: beside this one.
      package: that its Python has to find.
      install: what to give pip for it.
      by_horovodrun: whether that starts its workers; else it does so itself.
      most_workers: that it is measured with; 0 for any.
    """

    title: str
    script: str
    package: str
    install: str
    by_horovodrun: bool = False
    most_workers: int = 0


PEERS = {
    "in_graph": Peer("in-graph tf.Variable", "peer_in_graph.py", "tensorflow", "tensorflow-cpu", by_horovodrun=True),
    "torch": Peer("PyTorch sparse, DDP", "peer_torch.py", "torch", "torch"),
    "tfra": Peer(
        "TFRA", "peer_tfra.py", "tensorflow_recommenders_addons", "tensorflow-recommenders-addons", most_workers=1
    ),
}


@dataclasses.dataclass(frozen=True)
class PeerJob:
    """A peer's job, as `run_rounds` runs it.

    Attributes:
      name: what the report calls it.
      peer: the Peer.
      workers: of the job.
      python: the interpreter that has its package.
      data: directory of `write_batches`.
      steps, warmup: as of `Job`.
    """

    name: str
    peer: Peer
    workers: int
    python: str
    data: str
    steps: int
    warmup: int

    @property
    def launcher(self):
        horovod = self.peer.by_horovodrun and self.workers > 1
        return ("horovodrun", "-np", str(self.workers), "--gloo") if horovod else ()

    def run(self, directory, timeout):
        """-> list of the ranks' results, dicts with `examples_per_sec` and `version`."""
        directory = pathlib.Path(directory).resolve()
        directory.mkdir(parents=True)
        script = [self.python, str(_HERE / self.peer.script), f"--data={self.data}"]
        script += [f"--result_dir={directory}", f"--steps={self.steps}", f"--warmup={self.warmup}"]
        script += [f"--workers={self.workers}"]
        command.run([*self.launcher, *script], f"the job {self.name!r}", timeout, env=_environment(), merge_stderr=True)
        return [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(self.workers)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2", help="of each job")
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="that count in a run")
    parser.add_argument("--warmup", type=int, default=20, help="steps before them")
    parser.add_argument("--job_timeout", type=float, default=1800.0, help="seconds that one run may take")
    parser.add_argument("--output", default="bench", help="directory of the reports")
    parser.add_argument(
        "--peer_python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"interpreter of a peer ({', '.join(PEERS)}) that is installed elsewhere",
    )
    return parser.parse_args()


def main():
    """-> the exit status."""
    try:
        run(parse())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(flags):
    """Measures and reports; `flags` as of `parse`."""
    outputs.refuse_foreign_files(flags.output, ["peers.txt", "peers.json", "peers.png"])
    pythons = _pythons(flags.peer_python)
    sizes = sorted({int(workers) for workers in flags.workers.split(",")})
    if max(sizes) > 1:
        require_horovodrun()
    missing = {name: why for name in PEERS if (why := _missing(PEERS[name], pythons[name]))}
    with tempfile.TemporaryDirectory() as data:
        for rank in range(max(sizes)):
            write_workload(data, flags.batch_size, rank)
        jobs = []
        for workers in sizes:
            jobs += _ours(workers, flags)
            jobs += [
                PeerJob(f"{peer.title}: {workers}", peer, workers, pythons[name], data, flags.steps, flags.warmup)
                for name, peer in PEERS.items()
                if name not in missing and workers <= (peer.most_workers or workers)
            ]
        runs, failed = run_rounds(jobs, flags.rounds, flags.output, flags.job_timeout)
    found = {
        name: figure(sum(rank["examples_per_sec"] for rank in ranks) for ranks in rounds)
        for name, rounds in runs.items()
    }
    versions = {name: rounds[0][0].get("version", "") for name, rounds in runs.items()}
    results = {
        "batch_size": flags.batch_size,
        "rounds": flags.rounds,
        "steps": flags.steps,
        "examples_per_sec": {name: value.to_dict() for name, value in found.items()},
        "versions": {name: version for name, version in versions.items() if version},
        "not_installed": missing,
        "failed": failed,
    }
    lines = _lines(found, missing, failed, versions, flags)
    charts = {"peers.png": lambda path: chart.draw_bars(path, "W1, workers together", "examples/s", found)}
    write_report(flags.output, "peers", machine.describe(), lines, results, charts)


def _ours(workers, flags):
    """-> list of our Jobs of so many workers."""
    settings, cores = (f"--batch_size={flags.batch_size}", *_OF_W1), hardware.usable_cores()
    if workers == 1:
        return [lone_worker(settings, min(os.sched_getaffinity(0)), flags.steps, flags.warmup, f"{_OURS}: 1")]
    shares, threads = cores if workers <= cores else 0, (("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
    return [
        Job(f"{_OURS}, {way}: {workers}", workers, (*settings, *more), flags.steps, flags.warmup, shares, threads)
        for way, more in _WAYS.items()
    ]


def _lines(found, missing, failed, versions, flags):
    rows = []
    for name, value in found.items():
        title, _, workers = name.rpartition(": ")
        first = next(iter(found))
        rows.append([title, workers, cell(value), f"{value.median / found[first].median:.2f}", versions[name] or "-"])
    for name, why in missing.items():
        rows.append([PEERS[name].title, "-", why, "-", "-"])
    headings = ["", "workers", "examples/s, together", f"of {next(iter(found))}", "version"]
    lines = [
        f"W1, batches of {flags.batch_size:,}; one thread and, as far as they go, one core a worker; {flags.steps} "
        f"steps a run; median (range) of {flags.rounds} rounds, all in turn",
        "",
        *format_table(headings, rows),
    ]
    return lines + [f"{name} failed: {error}" for name, error in failed.items()]


def _missing(peer, python):
    """-> what to say of a peer whose package its Python does not find; "" where it does."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({peer.package!r}) is None)"
    try:
        done = subprocess.run([python, "-c", find], capture_output=True, timeout=_CHECK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"--peer_python: cannot run {python}: {error}") from None
    return f"not installed: pip install {peer.install}" if done.returncode else ""


def _pythons(texts):
    """["torch=/envs/torch/bin/python"] -> dict of peer -> interpreter, this one by default."""
    pythons = dict.fromkeys(PEERS, sys.executable)
    for text in texts:
        name, _, path = text.partition("=")
        if name not in PEERS or not path:
            raise UserError(f"--peer_python={text}: expected NAME=PATH, with a name of {', '.join(PEERS)}")
        pythons[name] = path
    return pythons


def _environment():
    return {**environment(1), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CTR_TRAINER_THREADS": "1"}


def write_workload(directory, batch_size, rank):
    """Writes what a rank of any peer reads: W1's batches and sizes."""
    sizes = dict(
        vocabulary=workload.VOCABULARY,
        dim=workload.DIM,
        hidden_units=workload.HIDDEN_UNITS,
        learning_rate=workload.LEARNING_RATE,
        accumulator=workload.INITIAL_ACCUMULATOR,
        stddev=workload.STDDEV,
    )
    write_batches(directory, *workload.arrays(batch_size, rank), rank, **sizes)


if __name__ == "__main__":
    sys.exit(main())
