"""Code that benchmarks share: commands, trainings, waiting, parts of a benchmark, and the sides of a comparison.

Importing this module makes `tests` importable.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psutil

from ctr_trainer.system.messages.log_lines import format_seconds

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
COMMAND = (sys.executable, "-m", "ctr_trainer")
DEMO = f"--flagfile={ROOT / 'configs/demo.flags'}"
TIMEOUT_SECONDS = 6 * 3600
# A column of a Markdown table: its title, the key of its values in the rows, and the format of the values.
Column = tuple[str, str, str]
Measured = TypeVar("Measured")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help shows the description without reformatting."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def words(text: str) -> list[str]:
    """Parses a flag such as `--models=deepfm,din`."""
    return text.split(",")


def words_of(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """Returns a parser of such flags that refuses words which are not `known`."""

    def parse(text: str) -> list[str]:
        if unknown := [word for word in words(text) if word not in known]:
            raise argparse.ArgumentTypeError(f"there is no {what} {unknown[0]}: choose from {', '.join(known)}")
        return words(text)

    return parse


def integers(text: str) -> list[int]:
    """Parses a flag such as `--seeds=1,2`."""
    return [int(word) for word in text.split(",")]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a job that uses this package and the programs in the directory of this Python."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONUNBUFFERED": "1",
        **(more or {}),
    }


def call(command: Sequence[object], more: Mapping[str, str] | None = None, shows_log: bool = False) -> str:
    """Runs a command and returns its standard output; if it fails, this program ends with the end of its output.

    `more` adds environment variables; `shows_log` shows the command's standard error while it runs. If the command does
    not end in time, it is killed.
    """
    log = None if shows_log else subprocess.PIPE
    with started(command, more, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        found, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    if process.returncode:
        output = f"{found[-3000:]}\n{(errors or '')[-3000:]}"
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{output}")
    return found


@contextlib.contextmanager
def started(
    command: Sequence[object], more: Mapping[str, str] | None = None, **pipes: Any
) -> Iterator[subprocess.Popen]:
    """Yields the process of a command; at the end of the block, it is killed with all processes that it started."""
    line, own = [*map(str, command)], environment(more)
    if not shutil.which(line[0], path=own["PATH"]):
        raise SystemExit(f"{line[0]}: there is no such program; `make install` builds Horovod, which has horovodrun")
    with subprocess.Popen(line, env=own, stdin=subprocess.DEVNULL, **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.kill()


@contextlib.contextmanager
def running(command: Sequence[object], log: pathlib.Path) -> Iterator[subprocess.Popen]:
    """Yields a process as `started` does, whose output is written to a file."""
    with open(log, "w", encoding="utf-8") as out, started(command, stdout=out, stderr=out) as process:
        yield process


def make_synthetic(directory: str | os.PathLike[str], *flags: str) -> None:
    """Writes synthetic data, the demo's without flags of `convert`, below a directory."""
    call([*COMMAND, "convert", "--format=synthetic", f"--output={directory}", *flags])


def last_json(output: str) -> dict[str, Any]:
    """Returns the JSON object in the last line of an output."""
    return json.loads(output.strip().rpartition("\n")[2])


def summary(model_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the contents of a training's train_summary.json, such as `examples_per_sec`."""
    return json.loads(pathlib.Path(model_dir, "train_summary.json").read_text(encoding="utf-8"))


def trained(command: Sequence[object], more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a training in a new model directory, which is removed afterwards, and returns its `summary`; see `call`."""
    with tempfile.TemporaryDirectory() as model_dir:
        call([*command, f"--model_dir={model_dir}"], more)
        return summary(model_dir)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The paths of a data set's converted parts."""

    train: pathlib.Path
    valid: pathlib.Path
    test: pathlib.Path


def once(file: pathlib.Path, run: Callable[[], dict[str, Any]], /, **key: Any) -> dict[str, Any]:
    """Returns the figures of a run with the values that identify it, from a file of JSON lines with one line per run.

    If the file has no line with these values, `run` measures the figures, and a line is appended.
    """
    for line in map(json.loads, file.read_text().splitlines() if file.is_file() else []):
        if all(line.get(name) == value for name, value in key.items()):
            return line
    found = key | run()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        print(json.dumps(found), file=out)
    return found


def train(parts: Parts, model_dir: pathlib.Path, *flags: str, shows_log: bool = False) -> dict[str, float]:
    """Runs `train` in a separate process; returns `examples_per_sec` and `core_seconds`, its CPU time."""
    before = os.times()
    data = f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--model_dir={model_dir}"
    call([*COMMAND, "train", *flags, *data], shows_log=shows_log)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"examples_per_sec": summary(model_dir)["examples_per_sec"], "core_seconds": round(used, 1)}


def test(model_dir: pathlib.Path, data: pathlib.Path, *flags: str) -> dict[str, float]:
    """Returns the metrics of a part."""
    given = f"--model_dir={model_dir}", f"--eval_data={data}", *flags
    return last_json(call([*COMMAND, "evaluate", *given]))


def wait_until(
    condition: Callable[[], Any],
    what: str,
    seconds: float,
    process: subprocess.Popen | None = None,
    log: pathlib.Path | None = None,
) -> Any:
    """Waits until the condition is true, and returns its value.

    If the time runs out or the process ends, the program ends with the end of the log.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline or process and process.poll() is not None:
            tail = f"; the end of {log.name}:\n{log.read_text(errors='replace')[-3000:]}" if log else ""
            raise SystemExit(f"waited for {what} in vain{tail}")
        time.sleep(0.05)
    return found


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a benchmark: its description for the help, the keys of its figures, and f(flags) -> figures."""

    about: str
    keys: tuple[str, ...]
    measure: Callable[[argparse.Namespace], dict[str, Any]]


def add_parts(parser: argparse.ArgumentParser, parts: Mapping[str, Part], default: Sequence[str]) -> None:
    """Adds the flag `--parts`."""
    about = "; ".join([*(f"{name}: {part.about}" for name, part in parts.items()), f"default {','.join(default)}"])
    parser.add_argument("--parts", type=words_of("part", parts), default=[*default], help=about)


def run_parts(parts: Mapping[str, Part], flags: argparse.Namespace) -> None:
    """Runs the parts that `flags.parts` names, and prints a JSON object as the last line.

    The values of a part that did not run or that failed are null; `failed` lists the failed parts. If a part fails, the
    other parts still run, and the program ends with an error after the last line.
    """
    found: dict[str, Any] = {key: None for part in parts.values() for key in part.keys}
    seconds, failed = {}, []
    for name in flags.parts:
        print(f"part {name}", flush=True)
        began = time.monotonic()
        try:
            found |= parts[name].measure(flags)
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
        seconds[name] = round(time.monotonic() - began)
    print(json.dumps(found | {"seconds": seconds, "failed": failed, "cores": len(os.sched_getaffinity(0))}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the traceback is above, below the name of the part")


def in_turn(
    sides: Mapping[str, Callable[[], Measured]],
    rounds: int,
    shown: Callable[[Measured], str] = "{:,.0f}".format,
    failed: dict[str, str] | None = None,
) -> dict[str, list[Measured]]:
    """Measures all sides in turn, `rounds` times, so that a drift of the machine's speed affects all of them.

    Prints to stderr a line per measurement, with the time that is left. Returns the figures by side and round. A side
    that fails ends the program or, if `failed` is given, is not measured again, and `failed` gets its error.
    """
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    began, total = time.monotonic(), rounds * len(sides)
    for number, (turn, name) in enumerate(itertools.product(range(1, rounds + 1), sides), 1):
        if failed and name in failed:
            continue
        try:
            found[name].append(sides[name]())
            text = shown(found[name][-1])
        except SystemExit as error:
            if failed is None:
                raise
            text = failed[name] = str(error)
        left = format_seconds((time.monotonic() - began) / number * (total - number))
        print(f"round {turn} of {rounds}, {name}: {text}; about {left} left", file=sys.stderr, flush=True)
    return found


def ratio(found: Mapping[str, list[float]], one: str, other: str) -> float | None:
    """Returns the median over the rounds of one side divided by another; None if one of them was not measured."""
    if one not in found or other not in found:
        return None
    return round(statistics.median(a / b for a, b in zip(found[one], found[other], strict=True)), 3)


def markdown(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a Markdown table, without the columns of which no row has a value."""
    known = [(title, key, form) for title, key, form in columns if any(row.get(key) is not None for row in rows)]
    titles, line = [title for title, _, _ in known], ["---", *["---:"] * (len(known) - 1)]
    cells = [[format(row[key], form) if row.get(key) is not None else "" for _, key, form in known] for row in rows]
    return [f"| {' | '.join(each)} |" for each in (titles, line, *cells)]
