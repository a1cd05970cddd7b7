"""The results of one training run, read from its directory; the run may still be in progress."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from ctr_trainer.checkpoint.evaluations import FILE as EVALUATIONS_FILE
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError

METRICS_FILE = "metrics.jsonl"  # As in the hooks, which import TensorFlow.
FLAGS_FILE, SUMMARY_FILE = "flags.json", "train_summary.json"
Curve = list[tuple[int, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run; its name is unique among the compared runs.

    Attributes:
      training: the figures of the log's last line, with the key `step`; {} if there is none.
      evaluations: the metrics, with the key `step`, by ascending step.
      settings: the values by flag with which the run started, and the number of `workers`.
      summary: what `train` wrote at its end; {} while it runs.
    """

    name: str
    training: dict[str, Any]
    evaluations: list[dict[str, Any]]
    settings: dict[str, Any]
    summary: dict[str, Any]

    @property
    def steps(self) -> int:
        """The last step in the log, the evaluations or the summary."""
        known = [self.summary.get("global_step", 0), self.training.get("step", 0)]
        return max(known + [line["step"] for line in self.evaluations])

    @property
    def examples_per_sec(self) -> float | None:
        """Examples/s of all workers over the whole run if it has ended, else from the last log line, or None."""
        return self.summary.get("examples_per_sec", self.training.get("examples_per_sec"))

    def curve(self, name: str) -> Curve:
        """Returns the (step, value) pairs of a metric in the evaluations, without undefined values."""
        return [(line["step"], line[name]) for line in self.evaluations if line.get(name) is not None]

    def examples(self, step: int) -> int | None:
        """Returns how many examples all workers have trained by a step; until the end, all batches count as full.

        None if the run has no settings, as a training of an `Estimator` in Python.
        """
        if self.summary.get("steps"):
            return round(step * self.summary["examples"] / self.summary["steps"])
        if "batch_size" not in self.settings:
            return None
        return step * math.prod(self.settings.get(name, 1) for name in ("batch_size", "accumulation_steps", "workers"))


def read_runs(directories: Sequence[str]) -> list[Run]:
    """Reads the runs in model directories. A run's name is the shortest end of its path that no other run has.

    Raises:
      UserError: a directory contains no run.
    """
    paths = [pathlib.Path(directory).resolve() for directory in directories]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    unique = dict.fromkeys(paths)
    return [_read(path, os.path.join(*path.parts[-depth:])) for path in unique]


def _read(path: pathlib.Path, name: str) -> Run:
    if not any((path / file).exists() for file in (METRICS_FILE, EVALUATIONS_FILE, SUMMARY_FILE)):
        missing = f"it has no {METRICS_FILE}, which `train` writes below model_dir"
        raise UserError(f"{path}: no training run: {missing if path.is_dir() else 'no such directory'}")
    started, evaluated = _json(path / FLAGS_FILE), _json(path / EVALUATIONS_FILE)
    settings = dict(started.get("flags", {}))
    if "workers" in started:
        settings["workers"] = started["workers"]
    training = _last_line(path / METRICS_FILE)
    summary = _json(path / SUMMARY_FILE)
    # The log of a run that continued after its end has lines beyond its summary.
    if summary and summary["global_step"] < training.get("step", 0):
        summary = {}
    return Run(name, training, evaluated.get("evaluations", []), settings, summary)


def _last_line(path: pathlib.Path) -> dict[str, Any]:
    """Returns the last complete line of the log; {} if there is none."""
    for text in reversed(path.read_text().splitlines()) if path.exists() else ():
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return {}


def _json(path: pathlib.Path) -> dict[str, Any]:
    cure = "`train` writes it again; remove it to compare without it"
    return LocalPath(path).read_json(cure) if path.exists() else {}


def best(curve: Curve, direction: str) -> tuple[int, Any] | None:
    """Returns the (step, value) of a curve's best point; `direction` is `max` or `min`. None if there are no points."""
    points = [point for point in curve if math.isfinite(point[1])]
    if not points:
        return None
    return (max if direction == "max" else min)(points, key=lambda point: point[1])
