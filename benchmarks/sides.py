"""The sides of a comparison: scripts that run in turn, so that the machine's drift hits all alike."""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
TIMEOUT_SECONDS = 900


@dataclasses.dataclass(frozen=True)
class Side:
    """One command of a comparison.

    Attributes:
      script: in this directory; each of its workers ends its output with a JSON line.
      arguments: of the script.
      workers: 0 runs it without horovodrun.
      environment: more variables.
      needs_bfloat16: whether it multiplies bfloat16, for which not every processor has instructions.
      lines: JSON lines that each worker prints.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workers: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    needs_bfloat16: bool = False
    lines: int = 1

    def run(self):
        """-> list of the workers' JSON objects."""
        command = [sys.executable, str(HERE / self.script), *self.arguments]
        if self.workers:
            command = ["horovodrun", "-np", str(self.workers), "--gloo", *command]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        environment.update(self.environment)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        lines = [line[line.index("{") :] for line in done.stdout.splitlines() if line.endswith("}") and "{" in line]
        if done.returncode or len(lines) != self.lines * max(self.workers, 1):
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return [json.loads(line) for line in lines]

    def examples_per_sec(self):
        """-> of all workers together."""
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
    """Returns the median over the rounds of one side's rate over another's, or None if one of them was left out."""
    if one not in rates or other not in rates:
        return None
    return round(statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True)), 3)
