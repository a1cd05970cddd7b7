"""Counts and times the recipe of Horovod: the demo's job of two workers with its defaults and configs/recipe.flags.

A first job of each configuration counts calls: `MonitoredSession.run`, `hvd.DistributedOptimizer`, and
`hvd.BroadcastGlobalVariablesHook`. Then all sides run in turn, in each round. The last line is JSON:

    session_runs_per_step             by configuration, calls of `session.run` per step; the most of both ranks
    distributed_optimizers            by configuration, how often `hvd.DistributedOptimizer` was constructed
    broadcast_hooks                   by configuration, how often `hvd.BroadcastGlobalVariablesHook` was constructed
    exchange                          by configuration, what the log of rank 0 says of the exchange
    recipe_over_default_speed         examples/s with configs/recipe.flags over examples/s with the defaults
    default_over_former_speed         examples/s of this code over examples/s of the checkout --former; null without it
    deterministic_equal               whether two runs with --deterministic have equal variables and rows, to the bit
    deterministic_over_default_speed  examples/s with --deterministic over examples/s with the defaults

Speeds are medians over the rounds of the ratio within a round.

Examples:
  python benchmarks/recipe.py --rounds 5 --former ../former
  python benchmarks/recipe.py --rounds 1 --rows 40000 --steps 20    # a smoke test
"""

import argparse
import json
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
from sides import COMMAND, ROOT, call, ratio, summary

_EXCHANGE = re.compile(r"gradient exchange: (.*)")
_COUNTS = "calls: "


def worker(flags: list[str]) -> int:
    """Trains with `flags` in this process, a worker of a job, and prints how often it made each call."""
    from ctr_trainer.system.processes import tensorflow_import

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


class Jobs:
    """Jobs of two workers, of `steps` steps each, on one data set of `rows` rows."""

    def __init__(self, directory: str, rows: int, steps: int) -> None:
        self._directory, self._steps = pathlib.Path(directory), steps
        data = self._directory / "data"
        if not (data / "test" / "_dataset.json").exists():
            convert = [f"--rows={rows}", f"--output={data}"]
            call([*COMMAND, "convert", "--format=synthetic", *convert])
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
        return summary(model)["examples_per_sec"]

    def model(self, name: str) -> dict[str, bytes]:
        """Returns the dense variables, and the keys and rows of each table in the order of the keys, as bytes."""
        import tensorflow as tf

        from ctr_trainer.embedding.snapshot import snapshot
        from ctr_trainer.estimator.checkpoint import latest_checkpoint

        checkpoint = latest_checkpoint(self._directory / name)
        reader = tf.train.load_checkpoint(checkpoint.dense_prefix)
        found = {key: reader.get_tensor(key).tobytes() for key in reader.get_variable_to_shape_map()}
        tables: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for config, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
            tables.setdefault(str(config), []).append((keys.copy(), rows.copy()))
        for table, blocks in tables.items():
            keys, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
            order = np.argsort(keys)
            found[table] = keys[order].tobytes() + rows[order].tobytes()
        return found

    def _run(
        self, root: pathlib.Path, program: list[str], name: str, flags: list[str]
    ) -> tuple[subprocess.CompletedProcess, pathlib.Path]:
        model = self._directory / name
        shutil.rmtree(model, ignore_errors=True)
        given = [f"--train_data={self._data}", "--eval_data=", f"--model_dir={model}", f"--max_steps={self._steps}"]
        given += ["--epochs=1000", "--save_checkpoints_steps=0", "--recipe=none"]
        return call(["horovodrun", "-np", "2", "--gloo", *program, *flags, *given], root), model


def measure(flags: argparse.Namespace, directory: str) -> dict[str, Any]:
    default = [f"--flagfile={ROOT}/configs/demo.flags"]
    configurations = {"default": default, "recipe": [f"--flagfile={ROOT}/configs/recipe.flags"]}
    jobs = Jobs(directory, flags.rows, flags.steps)
    sides = {name: (ROOT, given) for name, given in configurations.items()}
    sides["deterministic"] = ROOT, [*default, "--deterministic"]
    if flags.former:
        former = pathlib.Path(flags.former).resolve()
        sides["former"] = former, [f"--flagfile={former}/configs/demo.flags"]
    keys = ("session_runs_per_step", "distributed_optimizers", "broadcast_hooks", "exchange")
    results: dict[str, Any] = {key: {} for key in keys}
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
        "deterministic_equal": jobs.model("deterministic_first") == jobs.model("deterministic"),
        "deterministic_over_default_speed": ratio(rates, "deterministic", "default"),
        "examples_per_sec": {name: round(statistics.median(each)) for name, each in rates.items()},
        "rounds": flags.rounds,
        "steps": flags.steps,
    }


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all sides, in turn")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the data, which are made first")
    parser.add_argument("--steps", type=int, default=600, help="steps of each job")
    parser.add_argument("--former", help="directory of a checkout of the former code, for default_over_former_speed")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(flags, directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
