"""What the evaluations of a training run found, kept beside its checkpoints."""

import dataclasses
import math

from ctr_trainer.files.paths import path_of

FILE = "evaluations.json"


@dataclasses.dataclass
class EvaluationHistory:
    """The evaluations of one model so far, and which checkpoint is the best.

    Attributes:
      evaluations: list of dicts of `step` and the metrics, by ascending step.
      best: dict of `metric`, `direction`, `step` and `value` of the best checkpoint, or None.
    """

    evaluations: list = dataclasses.field(default_factory=list)
    best: dict | None = None

    @staticmethod
    def load(model_dir):
        """Returns the EvaluationHistory of a model directory, empty where there is none."""
        path = path_of(model_dir) / FILE
        if not path.exists():
            return EvaluationHistory()
        values = path.read_json("remove it to go on without the evaluations so far")
        evaluations = [{name: math.nan if v is None else v for name, v in e.items()} for e in values["evaluations"]]
        return EvaluationHistory(evaluations, values["best"])

    def save(self, model_dir):
        """Replaces the file, whole."""
        values = {"best": self.best, "evaluations": [without_nan(each) for each in self.evaluations]}
        (path_of(model_dir) / FILE).write_json(values, indent=None)

    def go_back(self, step):
        """Forgets the evaluations after `step`, from where training goes on; the best checkpoint stays what it is."""
        self.evaluations = [each for each in self.evaluations if each["step"] <= step]

    def add(self, step, metrics):
        """Adds an evaluation, in place of those of this step or later."""
        self.go_back(step - 1)
        self.evaluations.append({"step": step, **metrics})

    def improves(self, metric, direction, value):
        """Returns whether a value is better than that of the best checkpoint by this metric; NaN never is."""
        if self.best is None or (self.best["metric"], self.best["direction"]) != (metric, direction):
            return not math.isnan(value)
        return is_better(value, self.best["value"], direction)

    def best_by(self, metric: str, direction: str) -> dict | None:
        """Returns `step` and `value` of the best evaluation by a metric; None if no evaluation has a number for it."""
        best = None
        for each in self.evaluations:
            value = each.get(metric, math.nan)
            if is_better(value, best["value"] if best else math.nan, direction):
                best = {"step": each["step"], "value": value}
        return best

    def without_improvement(self, metric, direction, min_delta=0.0):
        """Returns how many of the last evaluations were not better, by more than `min_delta`, than the best earlier."""
        waited = 0
        for improved in self._improved(metric, direction, min_delta):
            waited = 0 if improved else waited + 1
        return waited

    def falls(self, metric, direction, min_delta=0.0, patience=1):
        """Returns how often `patience` evaluations in a row were not better than the best earlier; see `Plateau`."""
        waited = falls = 0
        for improved in self._improved(metric, direction, min_delta):
            waited = 0 if improved else waited + 1
            if waited == patience:
                falls, waited = falls + 1, 0
        return falls

    def _improved(self, metric, direction, min_delta):
        """Yields of each evaluation whether it was better, by more than `min_delta`, than the best before it."""
        reference = math.nan
        for each in self.evaluations:
            value = each.get(metric, math.nan)
            improved = is_better(value, reference, direction, min_delta)
            if improved:
                reference = value
            yield improved


def is_better(value, reference, direction, min_delta=0.0):
    """Returns whether `value` is better by more than `min_delta`; anything is better than NaN but NaN.

    Args:
      direction: `max` or `min`.
    """
    if math.isnan(reference):
        return not math.isnan(value)
    gain = value - reference if direction == "max" else reference - value
    return gain > min_delta


def without_nan(metrics):
    """Returns the dict, and what it holds, with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(metrics, dict):
        return {name: without_nan(value) for name, value in metrics.items()}
    if isinstance(metrics, list):
        return [without_nan(value) for value in metrics]
    return None if isinstance(metrics, float) and not math.isfinite(metrics) else metrics
