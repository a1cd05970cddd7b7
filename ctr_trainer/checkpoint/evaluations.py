"""The history of a model's evaluations, with the best checkpoint."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ctr_trainer.system.files.paths import path_of

FILE = "evaluations.json"


@dataclasses.dataclass
class EvaluationHistory:
    """The evaluations of a model so far, and the best checkpoint.

    Attributes:
      evaluations: dicts of `step` and the metrics, by ascending step.
      best: `metric`, `direction`, `step` and `value` of the best checkpoint, or None.
    """

    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: dict[str, Any] | None = None

    @staticmethod
    def load(model_dir: str) -> "EvaluationHistory":
        """Returns the EvaluationHistory of a model directory. It is empty if there is no file."""
        path = path_of(model_dir) / FILE
        if not path.exists():
            return EvaluationHistory()
        values = path.read_json("remove it to continue without the evaluations so far")
        evaluations = [{name: math.nan if v is None else v for name, v in e.items()} for e in values["evaluations"]]
        return EvaluationHistory(evaluations, values["best"])

    def save(self, model_dir: str) -> None:
        """Replaces the file atomically."""
        values = {"best": self.best, "evaluations": [without_nan(each) for each in self.evaluations]}
        (path_of(model_dir) / FILE).write_json(values, indent=None)

    def go_back(self, step: int) -> None:
        """Removes the evaluations after `step`, from which training resumes. Keeps `best`."""
        self.evaluations = [each for each in self.evaluations if each["step"] <= step]

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation, which replaces the evaluations of this step and of later steps."""
        self.go_back(step - 1)
        self.evaluations.append({"step": step, **metrics})

    def improves(self, metric: str, direction: str, value: float) -> bool:
        """Returns whether a value is better than the value of the best checkpoint. NaN is never better."""
        if self.best is None or (self.best["metric"], self.best["direction"]) != (metric, direction):
            return not math.isnan(value)
        return is_better(value, self.best["value"], direction)

    def best_by(self, metric: str, direction: str) -> dict[str, Any] | None:
        """Returns `step` and `value` of the best evaluation by a metric; None if no evaluation has a number for it."""
        best = None
        for each in self.evaluations:
            value = each.get(metric, math.nan)
            if is_better(value, best["value"] if best else math.nan, direction):
                best = {"step": each["step"], "value": value}
        return best

    def without_improvement(self, metric: str, direction: str, min_delta: float = 0.0) -> int:
        """Returns the number of evaluations since the last one that beat all earlier ones by more than `min_delta`."""
        waited = 0
        for improved in self._improved(metric, direction, min_delta):
            waited = 0 if improved else waited + 1
        return waited

    def falls(self, metric: str, direction: str, min_delta: float = 0.0, patience: int = 1) -> int:
        """Returns how often `patience` consecutive evaluations brought no improvement; see `schedules.Plateau`."""
        waited = falls = 0
        for improved in self._improved(metric, direction, min_delta):
            waited = 0 if improved else waited + 1
            if waited == patience:
                falls, waited = falls + 1, 0
        return falls

    def _improved(self, metric: str, direction: str, min_delta: float) -> Iterator[bool]:
        """Yields for each evaluation whether it was better, by more than `min_delta`, than all earlier ones."""
        reference = math.nan
        for each in self.evaluations:
            value = each.get(metric, math.nan)
            improved = is_better(value, reference, direction, min_delta)
            if improved:
                reference = value
            yield improved


def is_better(value: float, reference: float, direction: str, min_delta: float = 0.0) -> bool:
    """Returns whether `value` is better by more than `min_delta`; every number is better than NaN."""
    if math.isnan(reference):
        return not math.isnan(value)
    gain = value - reference if direction == "max" else reference - value
    return gain > min_delta


def without_nan(metrics: Any) -> Any:
    """Returns nested dicts and lists with None instead of NaN and infinities, which JSON cannot represent."""
    if isinstance(metrics, dict):
        return {name: without_nan(value) for name, value in metrics.items()}
    if isinstance(metrics, list):
        return [without_nan(value) for value in metrics]
    return None if isinstance(metrics, float) and not math.isfinite(metrics) else metrics
