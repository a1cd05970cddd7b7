"""What benchmarks share: commands, waiting, and the sides of a comparison.

The sides run in turn, so that a drift of the machine's speed affects all of them. The import of this module makes
`tests` importable.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
COMMAND = (sys.executable, "-m", "ctr_trainer")
TIMEOUT_SECONDS = 1800


def environment(root: pathlib.Path = ROOT, **more: str) -> dict[str, str]:
    """Returns the environment of a job that uses the package in `root` and the programs next to this Python."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **more,
    }


def call(command: Sequence[object], root: pathlib.Path = ROOT, **more: str) -> subprocess.CompletedProcess:
    """Runs a command in `root`; if it fails, the end of its output ends this program."""
    line = [*map(str, command)]
    done = subprocess.run(
        line, cwd=root, env=environment(root, **more), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if done.returncode:
        failed = f"{' '.join(line)} ended with {done.returncode}"
        raise SystemExit(f"{failed}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def summary(model_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns what a training left in its train_summary.json, such as `examples_per_sec`."""
    return json.loads(pathlib.Path(model_dir, "train_summary.json").read_text(encoding="utf-8"))


def command(*arguments: object) -> str:
    """Runs a command of the package in this process. Returns the last line that it prints, "" if it prints nothing."""
    from ctr_trainer import cli

    line = [*map(str, arguments)]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = cli.main(line)
    if status:
        raise SystemExit(f"{' '.join(line)} ended with {status}")
    return out.getvalue().strip().rpartition("\n")[2]


def wait_until(
    condition: Callable[[], Any],
    what: str,
    seconds: float,
    process: subprocess.Popen | None = None,
    log: pathlib.Path | None = None,
) -> Any:
    """Returns what the condition returns, once it is true.

    If time is up or the process ends, it ends the program with the end of the log.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline or process and process.poll() is not None:
            tail = f"; the end of {log.name}:\n{log.read_text(errors='replace')[-3000:]}" if log else ""
            raise SystemExit(f"waited for {what} in vain{tail}")
        time.sleep(0.05)
    return found


@dataclasses.dataclass(frozen=True)
class Side:
    """A run of `w1.py`, whose workers each end their output with a JSON line.

    Attributes:
      arguments: the arguments of the program.
      workers: number of workers; 0 runs the script without horovodrun.
      needs_bfloat16: whether it multiplies bfloat16, for which not every processor has instructions.
    """

    arguments: tuple[str, ...]
    workers: int = 0
    needs_bfloat16: bool = False

    def run(self) -> list[dict]:
        """Returns the JSON objects of the workers."""
        command = [sys.executable, str(HERE / "w1.py"), *self.arguments]
        if self.workers:
            command = ["horovodrun", "-np", str(self.workers), "--gloo", *command]
        done = call(command, OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
        lines = [line[line.index("{") :] for line in done.stdout.splitlines() if line.endswith("}") and "{" in line]
        if len(lines) != max(self.workers, 1):
            raise SystemExit(f"{' '.join(command)} printed {len(lines)} results:\n{done.stdout[-3000:]}")
        return [json.loads(line) for line in lines]

    def examples_per_sec(self) -> float:
        """Returns the examples/s of all workers together."""
        return sum(result["examples_per_sec"] for result in self.run())


def runnable(sides: dict[str, Side], has_bfloat16: bool) -> dict[str, Side]:
    """Returns the sides that this processor can run, and prints the name of each side that is left out."""
    left_out = [name for name, side in sides.items() if side.needs_bfloat16 and not has_bfloat16]
    for name in left_out:
        print(f"left out: {name}, since this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)")
    return {name: side for name, side in sides.items() if name not in left_out}


def compare(sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Runs all sides in turn, `rounds` times, and prints a line per round. Returns the examples/s by side and round."""
    rates = {name: [] for name in sides}
    width = max(map(len, sides)) + 2
    print(f"{'round':>5}" + "".join(f"{name:>{width}}" for name in sides) + "   (examples/s)", flush=True)
    for number in range(1, rounds + 1):
        for name, side in sides.items():
            rates[name].append(side.examples_per_sec())
        print(f"{number:>5}" + "".join(f"{rates[name][-1]:>{width},.0f}" for name in sides), flush=True)
    return rates


def ratio(rates: dict[str, list[float]], one: str, other: str) -> float | None:
    """Returns the median over the rounds of one side's rate over another's, or None if one of them did not run."""
    if one not in rates or other not in rates:
        return None
    return round(statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True)), 3)
