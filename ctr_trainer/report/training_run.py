"""What one training run has left in its directory, whether it has ended or not."""

import dataclasses
import json
import math
import os
import pathlib

from ctr_trainer.files import durable_file
from ctr_trainer.messages.errors import UserError

# As the hooks and commands name them; they are not imported, so that a report needs no TensorFlow.
METRICS_FILE, EVALUATIONS_FILE = "metrics.jsonl", "evaluations.json"
FLAGS_FILE, SUMMARY_FILE = "flags.json", "train_summary.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
      name: to call it by; unique among those compared.
      training: list of dicts of `step` and the figures of the log, by ascending step.
      evaluations: list of dicts of `step` and metrics, by ascending step.
      best: dict of `metric`, `direction`, `step`, `value` of the best checkpoint, or None.
      settings: by flag, what the run was started with, and its `workers`.
      summary: what `train` wrote at its end; {} while it runs.
    """

    name: str
    training: list
    evaluations: list
    best: dict | None
    settings: dict
    summary: dict

    @property
    def steps(self):
        """The last step that is known of."""
        known = [self.summary.get("global_step", 0)]
        return max(known + [line["step"] for line in (*self.training, *self.evaluations)])

    @property
    def examples_per_sec(self):
        """Of all workers: of the whole run where it has ended, else of its last line; None before that."""
        if "examples_per_sec" in self.summary:
            return self.summary["examples_per_sec"]
        rates = [line["examples_per_sec"] for line in self.training if "examples_per_sec" in line]
        return rates[-1] if rates else None

    def curve(self, name, evaluated):
        """-> [(step, value)] of a figure of the evaluations, or of the training's log; without undefined ones."""
        lines = self.evaluations if evaluated else self.training
        return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def read_runs(directories):
    """-> the Runs of the directories, each by the shortest end of its path that no other has.

    Raises:
      UserError: there is no run in one of them.
    """
    paths = [pathlib.Path(directory).resolve() for directory in directories]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    unique = dict.fromkeys(paths)
    return [_read(path, os.path.join(*path.parts[-depth:])) for path in unique]


def _read(path, name):
    if not any((path / file).exists() for file in (METRICS_FILE, EVALUATIONS_FILE, SUMMARY_FILE)):
        why = (
            f"it has no {METRICS_FILE}, which `train` writes below --model_dir"
            if path.is_dir()
            else "no such directory"
        )
        raise UserError(f"{path}: no training run: {why}")
    started, evaluated = _json(path / FLAGS_FILE), _json(path / EVALUATIONS_FILE)
    settings = dict(started.get("flags", {}))
    if "workers" in started:
        settings["workers"] = started["workers"]
    training = _lines(path / METRICS_FILE)
    summary = _json(path / SUMMARY_FILE)
    # A run that goes on after it ended has lines beyond its summary.
    if summary and training and summary["global_step"] < training[-1]["step"]:
        summary = {}
    return Run(name, training, evaluated.get("evaluations", []), evaluated.get("best"), settings, summary)


def _lines(path):
    """-> the lines of the file that count: those of steps that were trained again later do not."""
    kept = []
    if not path.exists():
        return kept
    with open(path) as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # The last one, which is being written, or was when the run was cut off.
            is_start = set(line) <= {"step", "time"}
            while kept and (kept[-1]["step"] > line["step"] or (kept[-1]["step"] == line["step"] and not is_start)):
                kept.pop()
            if not is_start:
                kept.append(line)
    return kept


def _json(path):
    cure = "`train` writes it anew; remove it to compare without it"
    return durable_file.read_json(path, cure) if path.exists() else {}


def last(curve):
    """-> the value of the last point of a curve; None where it has none."""
    return curve[-1][1] if curve else None


def best(curve, direction):
    """-> (step, value) of a curve's best point, by `max` or `min`; None where it has none."""
    points = [point for point in curve if math.isfinite(point[1])]
    if not points:
        return None
    return (max if direction == "max" else min)(points, key=lambda point: point[1])
