"""Jobs of 1, 2 and 4 processes under horovodrun at the same total batch, for `accuracy.py`."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ON = ("movielens-random", "deepfm")
FLAGFILE = ROOT / "configs" / "movielens_deepfm.flags"
TOTAL_BATCH, EPOCHS = 2048, 4
# What the job is called, its number of workers, its flags: rows synced with a service every 30 steps and every
# 10, and rows in shared memory.
JOBS = (
    ("one", 1, ()),
    ("service", 2, ()),
    ("service", 4, ()),
    ("service, N = 10", 2, ("--sync_steps=10",)),
    ("service, N = 10", 4, ("--sync_steps=10",)),
    ("shared", 2, ("--embedding_service=shared",)),
    ("shared", 4, ("--embedding_service=shared",)),
)
JOB_SECONDS = 7200


def run(results, parts, seeds):
    """Trains each of `JOBS` that `results` lacks for `EPOCHS`, and tests its best epoch by validation.

    A batch is `TOTAL_BATCH` / workers and the learning rates are those of one worker (--scale_lr=none), so that all
    jobs make the same steps but for what rows lag behind.
    """
    data, model = ON
    for seed, (job, workers, more) in itertools.product(seeds, JOBS):
        key = dict(side="workers", data=data, model=model, seed=seed, job=job, workers=workers)
        if not results.has(**key):
            print(f"{data}: {model}, job {job} of {workers}, seed {seed}", file=sys.stderr, flush=True)
            results.add(**key, **_train_and_test(parts, workers, [*more, f"--seed={seed}"]))


def _train_and_test(parts, workers, more):
    """-> dict of `auc`, `logloss` and `steps`."""
    with tempfile.TemporaryDirectory(prefix="ctr_trainer_accuracy_") as model_dir:
        common = [f"--flagfile={FLAGFILE}", f"--train_data={parts.train}", f"--model_dir={model_dir}", "--threads=1"]
        common += [f"--batch_size={TOTAL_BATCH // workers}", f"--epochs={EPOCHS}", "--scale_lr=none", *more]
        launch = ["horovodrun", "-np", str(workers), "--gloo"] if workers > 1 else []
        command = [sys.executable, "-m", "ctr_trainer"]
        _call([*launch, *command, "train", *common, f"--eval_data={parts.valid}"])
        last = ["--embedding_service=auto", f"--eval_data={parts.test}", "--checkpoint=best", "--exact_auc"]
        tested = json.loads(_call([*command, "evaluate", *common, *last]).splitlines()[-1])
    return {"auc": tested["auc"], "logloss": tested["logloss"], "steps": tested["global_step"]}


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
