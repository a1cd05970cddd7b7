"""The history of a model's evaluations, with the best checkpoint."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ctr_trainer.system.files.paths import path_of

FILE = "evaluations.json"


@dataclasses.dataclass
class EvaluationHistory:
    """The evaluations of a model so far, and the best checkpoint.

    Attributes:
      evaluations: dicts of `step` and the metrics, by ascending step.
      best: `metric`, `direction`, `step` and `value` of the best checkpoint, or None.
      begin: the step at which the training on the current data began; what was found up to it decides nothing more.
      due: the step of an evaluation that has begun and is not yet recorded; 0 for none.
    """

    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: dict[str, Any] | None = None
    begin: int = 0
    due: int = 0

    @staticmethod
    def load(model_dir: str) -> "EvaluationHistory":
        """Returns the EvaluationHistory of a model directory. It is empty if there is no file."""
        path = path_of(model_dir) / FILE
        if not path.exists():
            return EvaluationHistory()
        values = path.read_json("remove it to continue without the evaluations so far")
        evaluations = [{name: math.nan if v is None else v for name, v in e.items()} for e in values["evaluations"]]
        return EvaluationHistory(evaluations, values["best"], values.get("begin", 0), values.get("due", 0))

    @property
    def current(self) -> list[dict[str, Any]]:
        """The evaluations of the training on the current data."""
        return [each for each in self.evaluations if each["step"] > self.begin]

    def save(self, model_dir: str) -> None:
        """Replaces the file atomically."""
        evaluations = [without_nan(each) for each in self.evaluations]
        values = {"best": self.best, "begin": self.begin, "due": self.due, "evaluations": evaluations}
        (path_of(model_dir) / FILE).write_json(values, indent=None)

    def go_back(self, step: int) -> None:
        """Removes the evaluations after `step`, from which training resumes. Keeps `best`."""
        self.evaluations = [each for each in self.evaluations if each["step"] <= step]

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation, which replaces the evaluations of this step and of later steps."""
        self.go_back(step - 1)
        self.evaluations.append({"step": step, **metrics})

    def improves(self, metric: str, direction: str, value: float) -> bool:
        """Returns whether a value is better than the best checkpoint's on the current data. NaN is never better."""
        best = self.best if self.best and self.best["step"] > self.begin else {}
        is_of_metric = (best.get("metric"), best.get("direction")) == (metric, direction)
        return _is_better(value, best["value"] if is_of_metric else math.nan, direction)

    def best_by(self, metric: str, direction: str) -> dict[str, Any] | None:
        """Returns `step` and `value` of the best evaluation by a metric; None if no evaluation has a number for it."""
        waits = self.waits(metric, direction)
        improved = [each for each, wait in zip(self.current, waits, strict=True) if not wait]
        return {"step": improved[-1]["step"], "value": improved[-1][metric]} if improved else None

    def waits(self, metric: str, direction: str, min_delta: float = 0.0) -> list[int]:
        """Returns for each of `current` how many there were, with it, since an improvement by over `min_delta`."""
        found: list[int] = []
        best = math.nan
        for each in self.current:
            value = each.get(metric, math.nan)
            improves = _is_better(value, best, direction, min_delta)
            best = value if improves else best
            found.append(0 if improves else 1 + (found[-1] if found else 0))
        return found


def _is_better(value: float, reference: float, direction: str, min_delta: float = 0.0) -> bool:
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
