"""Jobs of one and several workers at the same total batch, on one host and on two, for `accuracy.py`."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from ctr_trainer.embedding.service.local_service import LocalService

ROOT = pathlib.Path(__file__).resolve().parents[1]
ON = ("movielens-random", "deepfm")
FLAGFILE = ROOT / "configs" / "movielens_deepfm.flags"
TOTAL_BATCH, EPOCHS = 2048, 4
JOB_SECONDS = 7200
# One machine under several names: horovodrun counts each as a host, whose workers train one copy of the rows.
_NAMES = ("localhost", "127.0.0.1")


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of `accuracy.py --workers`.

    Attributes:
      name: what is compared with `one`.
      workers: on each host.
      hosts: how many there are; several sync with a running service.
      flags: after the flagfile's.
    """

    name: str
    workers: int
    hosts: int = 1
    flags: tuple = ()


# A service is synced with every 30 steps, where the flags say nothing else.
JOBS = (
    Job("one", 1),
    Job("service", 2),
    Job("service", 4),
    Job("two hosts", 2, 2),
    Job("shared", 2, flags=("--embedding_service=shared",)),
    Job("shared", 4, flags=("--embedding_service=shared",)),
    Job("two hosts, N = 10", 2, 2, ("--sync_steps=10",)),
)


def run(results, parts, seeds, jobs=JOBS):
    """Trains each of the jobs that `results` lacks for `EPOCHS`, and tests its best epoch by validation.

    A batch is `TOTAL_BATCH` / workers and the learning rates are those of one worker (--scale_lr=none), so that all
    jobs make the same steps but for what rows lag behind.
    """
    data, model = ON
    for seed, job in itertools.product(seeds, jobs):
        workers = job.hosts * job.workers
        key = dict(side="workers", data=data, model=model, seed=seed, job=job.name, workers=workers)
        if not results.has(**key):
            print(f"{data}: {model}, job {job.name} of {workers}, seed {seed}", file=sys.stderr, flush=True)
            results.add(**key, **_train_and_test(parts, job, seed))


def _train_and_test(parts, job, seed):
    """-> dict of `auc`, `logloss` and `steps`."""
    workers = job.hosts * job.workers
    with tempfile.TemporaryDirectory(prefix="ctr_trainer_accuracy_") as directory:
        model_dir = pathlib.Path(directory) / "model"
        common = [f"--flagfile={FLAGFILE}", f"--train_data={parts.train}", f"--model_dir={model_dir}", "--threads=1"]
        common += [f"--batch_size={TOTAL_BATCH // workers}", f"--epochs={EPOCHS}", "--scale_lr=none"]
        common += [f"--seed={seed}", *job.flags]
        command = [sys.executable, "-m", "ctr_trainer"]
        with _service_flags(job.hosts, directory) as service:
            _call([*_launcher(job), *command, "train", *common, *service, f"--eval_data={parts.valid}"])
        last = ["--embedding_service=auto", f"--eval_data={parts.test}", "--checkpoint=best", "--exact_auc"]
        tested = json.loads(_call([*command, "evaluate", *common, *last]).splitlines()[-1])
    return {"auc": tested["auc"], "logloss": tested["logloss"], "steps": tested["global_step"]}


def _launcher(job):
    """-> the command that starts the workers of a job."""
    workers = job.hosts * job.workers
    if workers == 1:
        return []
    hosts = ",".join(f"{name}:{job.workers}" for name in _NAMES[: job.hosts])
    return ["horovodrun", "-np", str(workers), "-H", hosts, "--gloo"]


@contextlib.contextmanager
def _service_flags(hosts, directory):
    """Gives the flags that name a running service, which several hosts need; it ends with the block."""
    if hosts == 1:
        yield []
        return
    directory = pathlib.Path(directory)
    with LocalService(directory, directory / "service.log", timeout=120.0) as service:
        token = directory / "token"
        token.touch(mode=0o600)
        token.write_text(service.token)
        yield [f"--embedding_service={service.address}", f"--token_file={token}"]


def _call(command):
    """-> what the command prints; ends the program where it fails."""
    environment = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout
