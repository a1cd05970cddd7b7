"""Figures that were measured once per round, and the report of a table: its lines, the machine, and JSON."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ctr_trainer import __version__
from ctr_trainer.system.processes import hardware

ONE_ROUND = "One round does not show the variance between identical jobs and seeds: --rounds=3 does."
_PACKAGES = ("tensorflow", "tensorflow-cpu", "horovod", "numba", "numpy", "pyarrow")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure with its `values` by round, at least one.

    Its format is the median, followed by the range if there were several rounds: `98,400 (91,000 to 99,200)`.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __truediv__(self, unit: float) -> "Figure":
        return Figure(tuple(value / unit for value in self.values))

    def __format__(self, form: str) -> str:
        median, low, high = (format(value, form) for value in (self.median, min(self.values), max(self.values)))
        return median if len(self.values) == 1 else f"{median} ({low} to {high})"


def figure(values: Iterable[float | None]) -> Figure | None:
    """Returns the `Figure` of the values that are not None; None if there are no such values."""
    known = tuple(value for value in values if value is not None)
    return Figure(known) if known else None


def machine() -> dict[str, Any]:
    """Describes this machine; `cores` are those that this process may use, `load` is the average of the last minute."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {"python": platform.python_version(), "ctr_trainer": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": hardware.usable_cores(),
        "bfloat16": hardware.has_bfloat16(),
        "versions": versions,
        "load": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def plain(value: Any) -> Any:
    """Converts results to types that JSON supports; a `Figure` becomes its median, minimum, maximum and values."""
    if isinstance(value, Figure):
        values = [*value.values]
        return {"median": value.median, "min": min(values), "max": max(values), "values": values}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def report(
    name: str, on: dict[str, Any], lines: Iterable[str], results: Mapping[str, Any], failed: Mapping[str, str]
) -> None:
    """Prints the lines of a table, the errors of jobs that failed, the machine, and JSON as the last line.

    `on` is the `machine` before the measurement. If it was busy with other work, the first line says so. If a job
    failed, the program ends with an error after the last line.
    """
    busy = on["load"] > on["cores"]
    if busy:
        print(f"Measured at a load of {on['load']:g} on {on['cores']} cores, so the times are unreliable:")
    failures = [f"{job} failed: {error}" for job, error in failed.items()]
    versions = ", ".join(f"{package} {version}" for package, version in on["versions"].items())
    print("\n".join([*lines, "", *failures, f"{on['cpu']}, {on['cores']} cores, {versions}"]))
    print(json.dumps({"bench": name, "machine": on, "overloaded": busy, **plain(results), "failed": failed}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
