"""What a benchmark ran on, without which its figures say nothing."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
import time

import psutil

from ctr_trainer import __version__
from ctr_trainer.processes import hardware

_PACKAGES = ("tensorflow", "tensorflow-cpu", "horovod", "numba", "numpy", "pyarrow")
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
_GPU_SECONDS = 20


def describe():
    """-> dict, JSON-able: `cpu`, `cores` (that this process may use), `memory_gb`, `bfloat16`, `gpus`, `system`,
    `python`, `versions` by package, `load` (processes that wanted a core in the last minute), `time`.
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


def format_machine(machine):
    """-> lines for people."""
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"machine:  {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, {gpus}, "
        f"load {machine['load']:g} at the start",
        f"versions: Python {machine['python']}, {versions}, {machine['system']}",
    ]


def _cpu():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpus():
    """-> their names and memory; [] where NVIDIA's tool is absent or sees none."""
    try:
        done = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=_GPU_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _versions():
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
