"""What the interval between two syncs costs in AUC, by optimizer, number of workers and merge. MovieLens, random split.

Each point is one training of DeepFM (dim 16, hidden layers 64 and 32) over 2 epochs at a total batch of 1024, tested on
the test split; see `staleness_run` for how K workers train in one process. Results are JSON lines in --results; what
stands there is not run again, and the table and the picture are made of it. A worker alone has nothing to sync.

Learning rates are those with the best AUC on the validation split for one worker, seed 1 (--tune shows them).

Example: python benchmarks/staleness.py --data=ml-1m --results=benchmarks/staleness.jsonl --picture=docs/staleness.png
         python benchmarks/staleness.py --optimizers=adagrad --workers=1,8 --seeds=1 --results=part.jsonl
         python benchmarks/staleness.py --report --results=benchmarks/staleness.jsonl  # the table of what is there
         python benchmarks/staleness.py --check=adagrad:2:30:sum --data=ml-1m        # beside a real job
         python benchmarks/staleness.py --late=0,10,20 --data=ml-1m                  # one worker, late gradients
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import staleness_report
import tqdm

from ctr_trainer.messages.errors import UserError

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
WORKERS, SYNC_STEPS, MERGES, SEEDS = (1, 2, 4, 8), (1, 5, 10, 30, 100, 300), ("sum", "mean", "adaptive"), (1, 2, 3)
# By optimizer: learning rate of the rows and initial accumulator, of --tune.
RATES = {"sgd": (3.0, 1e-6), "adagrad": (0.1, 1e-6), "rowwise_adagrad": (0.1, 1e-6), "adam": (0.01, 1e-6)}
TUNED = {"sgd": (1.0, 3.0, 5.0), "adam": (0.002, 0.005, 0.01, 0.02)}
TUNED_ADAGRAD = tuple(itertools.product((0.05, 0.1, 0.2), (1e-8, 1e-6, 1e-4)))
BATCH_SIZE, EPOCHS = 1024, 2
# The AUC that a training which diverged counts for.
CHANCE = 0.5
JOB_SECONDS = 1800


def main():
    flags = _flags()
    if not flags.report:
        # Before TensorFlow and Numba are loaded.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        import staleness_run

        data = staleness_run.convert_movielens(flags.data, flags.work)
        if flags.tune:
            _tune(staleness_run, data)
            return
        if flags.late:
            _late(staleness_run, data, flags)
            return
        if flags.check:
            _check(staleness_run, data, flags.check, flags.work)
            return
        _run(staleness_run, data, flags)
    results = staleness_report.read(flags.results)
    print(staleness_report.table(results))
    if flags.picture:
        staleness_report.draw(results, flags.picture)
        print(f"the picture is {flags.picture}")


def _flags():
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "movielens"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=beside, help="MovieLens's directory, with ratings.dat")
    parser.add_argument("--work", default=pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_staleness")
    parser.add_argument("--results", type=pathlib.Path, help="JSON lines; default: results.jsonl below --work")
    parser.add_argument("--picture", help="PNG to write")
    parser.add_argument("--report", action="store_true", help="run nothing, only show what there is")
    parser.add_argument("--tune", action="store_true", help="learning rates for one worker, on the validation split")
    parser.add_argument("--check", help="OPTIMIZER:WORKERS:SYNC_STEPS:MERGE, also as a real job under horovodrun")
    parser.add_argument(
        "--late", type=_integers, help="steps by which the gradients of one worker's rows come late, in place of a grid"
    )
    for name, values in (("optimizers", OPTIMIZERS), ("merges", MERGES)):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=values)
    for name, values in (("workers", WORKERS), ("sync_steps", SYNC_STEPS), ("seeds", SEEDS)):
        parser.add_argument(f"--{name}", type=_integers, default=values)
    flags = parser.parse_args()
    flags.results = flags.results or pathlib.Path(flags.work) / "results.jsonl"
    return flags


def _integers(text):
    return [int(part) for part in text.split(",")]


def _points(make, flags):
    """-> the points of the selection, those of one seed and number of workers side by side."""
    points = []
    for seed, workers, optimizer in itertools.product(flags.seeds, flags.workers, flags.optimizers):
        if workers == 1:
            points.append(make(optimizer, 1, 1, "sum", seed, *RATES[optimizer]))
            continue
        for merge, steps in itertools.product(flags.merges, flags.sync_steps):
            if merge == "adaptive" and optimizer == "sgd":  # Which is `mean`, see `merging`.
                continue
            points.append(make(optimizer, workers, steps, merge, seed, *RATES[optimizer]))
    return points


def _run(staleness_run, data, flags):
    simulation = staleness_run.Simulation(data, BATCH_SIZE, EPOCHS)
    flags.results.parent.mkdir(parents=True, exist_ok=True)
    with flags.results.open("a") as file:
        for point in tqdm.tqdm(_points(staleness_run.Point, flags), unit=" runs", smoothing=0.05):
            # Read each time: another process may run the points of another selection.
            if dataclasses.astuple(point) in staleness_report.there(flags.results):
                continue
            start = time.process_time()
            try:
                diverged, auc = {}, simulation.run(point)
            except UserError as error:  # A row that is not finite is refused by the store.
                tqdm.tqdm.write(f"{point}: {error}")
                diverged, auc = {"diverged": True}, CHANCE
            used = round(time.process_time() - start, 2)
            line = {**dataclasses.asdict(point), "batch_size": BATCH_SIZE, "epochs": EPOCHS, "auc": auc, "cpu_s": used}
            line |= diverged
            print(json.dumps(line), file=file, flush=True)


def _tune(staleness_run, data):
    simulation = staleness_run.Simulation(data, BATCH_SIZE, EPOCHS, part="valid")
    for optimizer in OPTIMIZERS:
        for setting in [(rate, 1e-6) for rate in TUNED.get(optimizer, ())] or TUNED_ADAGRAD:
            auc = simulation.run(staleness_run.Point(optimizer, 1, 1, "sum", 1, *setting))
            print(json.dumps(dict(optimizer=optimizer, learning_rate=setting[0], accumulator=setting[1], auc=auc)))


def _late(staleness_run, data, flags):
    """Prints what the age of the gradients alone costs, without other workers and merges."""
    simulation = staleness_run.Simulation(data, BATCH_SIZE, EPOCHS)
    for optimizer, late in itertools.product(flags.optimizers, flags.late):
        points = [staleness_run.Point(optimizer, 1, 1, "sum", seed, *RATES[optimizer]) for seed in flags.seeds]
        aucs = [round(simulation.run(point, late), 4) for point in points]
        print(json.dumps(dict(optimizer=optimizer, late=late, seeds=flags.seeds, aucs=aucs)), flush=True)


def _check(staleness_run, data, text, work):
    """Prints a point's AUC, seed 1, as simulated and as a job of so many processes gets it."""
    optimizer, workers, sync_steps, merge = text.split(":")
    rate, accumulator = RATES[optimizer]
    point = staleness_run.Point(optimizer, int(workers), int(sync_steps), merge, 1, rate, accumulator)
    simulated = staleness_run.Simulation(data, BATCH_SIZE, EPOCHS).run(point)
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(dir=work) as model_dir:
        common = [
            *(f"--train_data={data / 'train'}", f"--eval_data={data / 'test'}", f"--model_dir={model_dir}"),
            *("--model=deepfm", f"--hidden_units={','.join(map(str, staleness_run.HIDDEN_UNITS))}", "--seed=1"),
            *("--threads=1", f"--batch_size={BATCH_SIZE // point.workers}", f"--epochs={EPOCHS}", "--scale_lr=none"),
            *(f"--learning_rate={staleness_run.DENSE_LEARNING_RATE}", f"--embedding_learning_rate={rate}"),
            *([f"--embedding_initial_accumulator={accumulator}"] if "adagrad" in optimizer else []),
            f"--embedding_optimizer={optimizer}",
            *("--row_copies=worker", f"--sync_steps={sync_steps}", f"--sync_merge={merge}"),
        ]
        job = ["horovodrun", "-np", workers, "--gloo"] if point.workers > 1 else []
        python = [sys.executable, "-m", "ctr_trainer"]
        for command in ([*job, *python, "train", *common], [*python, "evaluate", *common]):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS)
            if done.returncode:
                sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    real = json.loads(done.stdout.splitlines()[-1])["auc"]
    print(json.dumps({**dataclasses.asdict(point), "auc": simulated, "auc_of_a_real_job": real}))


if __name__ == "__main__":
    main()
