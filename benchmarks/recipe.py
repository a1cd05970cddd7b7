"""The recipe of Horovod, counted and timed: the demo's job of two workers by its defaults and by configs/recipe.flags.

A first job of each configuration counts calls: `MonitoredSession.run`, `hvd.DistributedOptimizer`, and
`hvd.BroadcastGlobalVariablesHook`. Then all sides run in turn, in each round. The last line is JSON:

    session_runs_per_step             by configuration, calls of `session.run` per step; the most of both ranks
    distributed_optimizers            by configuration, how often `hvd.DistributedOptimizer` was constructed
    broadcast_hooks                   by configuration, how often `hvd.BroadcastGlobalVariablesHook` was constructed
    exchange                          by configuration, what the log of rank 0 says of the exchange
    recipe_over_default_speed         examples/s of configs/recipe.flags over those of the defaults
    default_over_former_speed         examples/s of the defaults over those of the checkout --former; null without it
    deterministic_equal               whether two runs with --deterministic have equal variables and rows, to the bit
    deterministic_over_default_speed  examples/s with --deterministic over those of the defaults

Speeds are medians over the rounds of the ratio within a round.

Examples:
  python benchmarks/recipe.py --rounds 5 --former ../former
  python benchmarks/recipe.py --rounds 1 --rows 40000 --steps 20    # a smoke test
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import tqdm

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 1800
_EXCHANGE = re.compile(r"gradient exchange: (.*)")
_COUNTS = "calls: "


def worker(flags: list[str]) -> int:
    """Trains by `flags` in this process, a worker of a job, and prints how often it made which call."""
    from ctr_trainer.processes import tensorflow_import

    tensorflow_import.install()  # As `train` does, before the first import of TensorFlow.
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from ctr_trainer import cli
    from ctr_trainer.ranks.host_sum import HostSum

    calls: dict[str, int] = {}

    def counted(owner: object, name: str, title: str) -> None:
        inner, calls[title] = getattr(owner, name), 0

        def call(*arguments: Any, **more: Any) -> Any:
            calls[title] += 1
            return inner(*arguments, **more)

        setattr(owner, name, call)

    counted(tf.compat.v1.train.MonitoredSession, "run", "session_runs")
    counted(hvd, "DistributedOptimizer", "distributed_optimizers")
    counted(hvd.BroadcastGlobalVariablesHook, "__init__", "broadcast_hooks")
    counted(HostSum, "__init__", "host_sums")
    status = cli.main(["train", *flags])
    print(_COUNTS + json.dumps(calls), flush=True)
    return status


@dataclasses.dataclass(frozen=True)
class Model:
    """What a training ended with.

    Attributes:
      dense: the dense variables, by name.
      rows: by table, the keys and the rows.
    """

    dense: dict[str, np.ndarray]
    rows: dict[str, tuple[np.ndarray, np.ndarray]]


class Jobs:
    """Jobs of two workers on one data set.

    Args:
      directory: of the data and the models.
      rows: of the data.
      steps: of each job.
    """

    def __init__(self, directory: str, rows: int, steps: int) -> None:
        self._directory, self._steps = pathlib.Path(directory), steps
        data = self._directory / "data"
        if not (data / "test" / "_dataset.json").exists():
            convert = [f"--rows={rows}", f"--output={data}"]
            self._call(ROOT, [sys.executable, "-m", "ctr_trainer", "convert", "--format=synthetic", *convert])
        self._data = data / "train"

    def count(self, flags: list[str]) -> tuple[list[dict[str, int]], str]:
        """Returns the counts of each rank of a job, and what the log of rank 0 says of the exchange."""
        program = [sys.executable, str(pathlib.Path(__file__).resolve()), "--worker"]
        done, _ = self._run(ROOT, program, "counted", flags)
        counts = [json.loads(line.partition(_COUNTS)[2]) for line in done.stdout.splitlines() if _COUNTS in line]
        said = _EXCHANGE.findall(done.stderr)
        if len(counts) != 2 or len(said) != 1:
            raise SystemExit(f"found {len(counts)} counts and the exchanges {said}:\n{done.stderr[-3000:]}")
        return counts, said[0]

    def examples_per_sec(self, root: pathlib.Path, name: str, flags: list[str]) -> float:
        """Returns the rate of both workers together, by the code in `root`. The model stays in the directory `name`."""
        _, model = self._run(root, [str(root / "run.sh")], name, flags)
        return json.loads((model / "train_summary.json").read_text(encoding="utf-8"))["examples_per_sec"]

    def model(self, name: str) -> Model:
        """Returns the model in the directory `name`."""
        import tensorflow as tf

        from ctr_trainer.estimator.checkpoint import latest_checkpoint

        checkpoint = latest_checkpoint(self._directory / name)
        reader = tf.train.load_checkpoint(checkpoint.dense_prefix)
        dense = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
        return Model(dense, rows_of(checkpoint))

    def _run(
        self, root: pathlib.Path, program: list[str], name: str, flags: list[str]
    ) -> tuple[subprocess.CompletedProcess, pathlib.Path]:
        model = self._directory / name
        shutil.rmtree(model, ignore_errors=True)
        given = [f"--train_data={self._data}", "--eval_data=", f"--model_dir={model}", f"--max_steps={self._steps}"]
        given += ["--epochs=1000", "--save_checkpoints_steps=0"]
        return self._call(root, ["horovodrun", "-np", "2", "--gloo", *program, *flags, *given]), model

    def _call(self, root: pathlib.Path, command: list[str]) -> subprocess.CompletedProcess:
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": path}
        done = subprocess.run(
            list(map(str, command)), cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done


def rows_of(checkpoint: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the keys and rows of each table of a `Checkpoint`, in the order of the keys."""
    from ctr_trainer.embedding.snapshot import snapshot

    found = {}
    for config, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
        found.setdefault(str(config), []).append((keys.copy(), rows.copy()))
    tables = {}
    for table, blocks in found.items():
        keys, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        order = np.argsort(keys)
        tables[table] = keys[order], rows[order]
    return tables


def are_equal(one: Model, other: Model) -> bool:
    """Returns whether two models have equal dense variables and rows, to the bit."""
    if one.dense.keys() != other.dense.keys() or one.rows.keys() != other.rows.keys():
        return False
    pairs = [(one.dense[name], other.dense[name]) for name in one.dense]
    pairs += [pair for name in one.rows for pair in zip(one.rows[name], other.rows[name], strict=True)]
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def ratio(rates: dict[str, list[float]], one: str, other: str) -> float | None:
    """Returns the median over the rounds of one side's rate over another's, or None if one of them did not run."""
    if one not in rates or other not in rates:
        return None
    return round(statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True)), 3)


def measure(flags: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Returns the results, for JSON."""
    default = [f"--flagfile={ROOT}/configs/demo.flags"]
    configurations = {"default": default, "recipe": [f"--flagfile={ROOT}/configs/recipe.flags"]}
    jobs = Jobs(directory, flags.rows, flags.steps)
    sides = {name: (ROOT, given) for name, given in configurations.items()}
    sides["deterministic"] = ROOT, [*default, "--deterministic"]
    if flags.former:
        former = pathlib.Path(flags.former).resolve()
        sides["former"] = former, [f"--flagfile={former}/configs/demo.flags"]
    results: dict[str, Any] = {
        "session_runs_per_step": {},
        "distributed_optimizers": {},
        "broadcast_hooks": {},
        "exchange": {},
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    runs = len(configurations) + 1 + flags.rounds * len(sides)
    with tqdm.tqdm(total=runs, desc="jobs of two workers", file=sys.stderr) as bar:
        for name, given in configurations.items():
            counts, results["exchange"][name] = jobs.count(given)
            results["session_runs_per_step"][name] = max(each["session_runs"] for each in counts) / flags.steps
            for what in ("distributed_optimizers", "broadcast_hooks"):
                results[what][name] = max(each[what] for each in counts)
            bar.update()
        jobs.examples_per_sec(ROOT, "deterministic_first", sides["deterministic"][1])
        bar.update()
        for number in range(1, flags.rounds + 1):
            for name, (root, given) in sides.items():
                rates[name].append(jobs.examples_per_sec(root, name, given))
                bar.update()
            of_round = ", ".join(f"{name} {each[-1]:,.0f}" for name, each in rates.items())
            tqdm.tqdm.write(f"round {number} of {flags.rounds}, examples/s: {of_round}", file=sys.stderr)
    return {
        **results,
        "recipe_over_default_speed": ratio(rates, "recipe", "default"),
        "default_over_former_speed": ratio(rates, "default", "former"),
        "deterministic_equal": are_equal(jobs.model("deterministic_first"), jobs.model("deterministic")),
        "deterministic_over_default_speed": ratio(rates, "deterministic", "default"),
        "examples_per_sec": {name: round(statistics.median(each)) for name, each in rates.items()},
        "rounds": flags.rounds,
        "steps": flags.steps,
    }


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of all sides, in turn")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the data, which are made first")
    parser.add_argument("--steps", type=int, default=600, help="of each job")
    parser.add_argument("--former", help="directory of a checkout of the former code, for default_over_former_speed")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(flags, directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
