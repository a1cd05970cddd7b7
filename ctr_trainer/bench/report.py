"""Writes the report of a benchmark: a table of figures over several rounds, the machine, JSON and charts."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import psutil

from ctr_trainer import __version__
from ctr_trainer.system.files import durable_file, outputs
from ctr_trainer.system.processes import hardware

ONE_ROUND = (
    "One round does not show the variance between equal jobs, so small differences mean nothing; --rounds=3 shows it."
)
_PACKAGES = ("tensorflow", "tensorflow-cpu", "horovod", "numba", "numpy", "pyarrow")
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
_GPU_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that was measured once per round.

    Attributes:
      values: the figure of each round; at least one value.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Returns `median`, `min`, `max` and the `values` by round, for JSON."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": list(self.values)}

    def __format__(self, form: str) -> str:
        """Returns the median, followed by the range if there were several rounds: `98,400 (91,000-99,200)`."""
        median = format(self.median, form)
        if len(self.values) == 1:
            return median
        return f"{median} ({format(min(self.values), form)}-{format(max(self.values), form)})"


@overload
def figure(values: Iterable[float]) -> Figure: ...


@overload
def figure(values: Iterable[float | None]) -> Figure | None: ...


def figure(values: Iterable[float | None]) -> Figure | None:
    """Returns the `Figure` of the values that are not None; None if there are no such values."""
    known = tuple(value for value in values if value is not None)
    return Figure(known) if known else None


def gains(before: Figure | None, rates: Figure | None) -> Figure | None:
    """Returns by how many percent the examples/s of a row exceed those of the previous row, `before`, in each round."""
    if before is None or rates is None:
        return None
    return figure(100 * (own / other - 1) for own, other in zip(rates.values, before.values, strict=True))


def cell(value: Figure | float | str | None, form: str) -> str:
    """Returns the text of a table's cell; `-` for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form)


def describe() -> dict[str, Any]:
    """Describes this machine, for JSON.

    `cores` is the number of cores that this process may use, and `load` is the load average of the last minute.
    """
    return {
        "cpu": _cpu(),
        "cores": hardware.usable_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "bfloat16": hardware.has_bfloat16(),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {"ctr_trainer": __version__, **_versions()},
        "load": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def format_machine(machine: Mapping[str, Any]) -> list[str]:
    """Returns the lines of a report that describe a machine, see `describe`."""
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"machine:  {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, {gpus}, "
        f"load {machine['load']:g} at the start",
        f"versions: Python {machine['python']}, {versions}, {machine['system']}",
    ]


def _cpu() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Returns the name and memory of each GPU; [] if nvidia-smi is missing or finds none."""
    try:
        done = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=_GPU_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def plain(value: Any) -> Any:
    """Converts results to types that JSON supports."""
    if isinstance(value, Figure):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return list(map(plain, value)) if isinstance(value, list | tuple) else value


def write_report(
    output: str,
    name: str,
    machine: dict[str, Any],
    lines: list[str],
    results: dict[str, Any],
    charts: Mapping[str, Callable[[str], None]],
    failed: Mapping[str, str],
) -> None:
    """Prints the table, writes it to NAME.txt in `output`, and writes NAME.json and the charts.

    If the machine was busy with other work before the measurement began, the title reports it.

    Args:
      machine: the result of `describe` before the measurement.
      results: the results for JSON; a dataclass is converted to an object with its attributes, a `Figure` by `to_dict`.
      charts: dict of file name -> f(path) that draws the chart.
      failed: the error messages of the jobs that failed, by name.

    Raises:
      UserError: a file with one of these names exists and is not an earlier report.
    """
    busy = machine["load"] > machine["cores"]
    title = [
        f"Measured at a load of {machine['load']:g} on {machine['cores']} cores, so the times are unreliable:"
    ] * busy
    failures = [f"{job} failed: {error}" for job, error in failed.items()]
    text = "\n".join([*title, *lines, *failures, "", *format_machine(machine)])
    print(text, flush=True)
    paths = outputs.claim(output, [f"{name}.txt", f"{name}.json", *charts])
    durable_file.write_text(paths[f"{name}.txt"], text + "\n")
    found = {"bench": name, "machine": machine, "overloaded": busy, **results, "failed": failed}
    durable_file.write_json(paths[f"{name}.json"], plain(found))
    for file_name, draw in charts.items():
        draw(paths[file_name])
    for path in paths.values():
        print(path, flush=True)
