"""Keeps the best model of a training run, and ends the run when none better comes."""

import dataclasses
import logging
import math
import os

import tensorflow as tf

from ctr_trainer.estimator import retention
from ctr_trainer.files.paths import path_of
from ctr_trainer.files.staging import local_directory
from ctr_trainer.messages.errors import UserError
from ctr_trainer.metrics.evaluation_metrics import DIRECTIONS
from ctr_trainer.ranks import distributed

FILE = "evaluations.json"
tf1 = tf.compat.v1
_log = logging.getLogger(__name__)
_LOSSES = ("loss", "logloss")


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


class ModelSelection:
    """Evaluates on call; logs, keeps and summarises what was found; saves the model where it is the best so far.

    Rank 0 decides and tells the others. After a restart it goes on with the evaluations up to the step of the
    checkpoint, so that the patience is counted as if the run had not been interrupted.

    Args:
      evaluate: f(session) -> dict of metrics, or None if the training is to stop by a signal; a collective.
      metric_names: those that `evaluate` returns.
      eval_spec: the `EvalSpec`.
      model_dir: where the history, the best checkpoint and the summaries go.
      save: f(session, step) -> path of the checkpoint of that step; a collective.
      start: the step that training goes on from.
      plateau_patience: evaluations without an improvement that lower the learning rates once; 0 if none do.

    Attributes:
      falls: how often the evaluations so far have lowered the learning rates, see `EvaluationHistory.falls`.
      metrics: of the last evaluation, with `global_step`; None before the first one.
      stopped: whether it ended the training.

    Raises:
      UserError: there is no such metric.
    """

    def __init__(self, evaluate, metric_names, eval_spec, model_dir, save, start, plateau_patience=0):
        self._evaluate, self._spec, self._model_dir, self._save = evaluate, eval_spec, model_dir, save
        if eval_spec.best_metric and eval_spec.best_metric not in metric_names:
            raise UserError(
                f"best_metric={eval_spec.best_metric}: the model has no such metric; it has {', '.join(metric_names)}"
            )
        self.metrics, self.stopped = None, False
        self._history, self._writer = None, None
        if distributed.is_chief():
            self._history = EvaluationHistory.load(model_dir)
            self._history.go_back(start)
        self._plateau_patience, self.falls = plateau_patience, 0
        if plateau_patience:
            self.falls = distributed.broadcast_object(self._count_falls(), "learning_rate_falls")

    def __call__(self, session, step):
        """Returns whether training is to stop. A collective."""
        found = self._evaluate(session)
        if found is None:
            return False
        metrics = {k: v for k, v in found.items() if not k.startswith("reliability")}
        self.metrics = {"global_step": step, **metrics}
        decided = distributed.broadcast_object(self._decide(step, metrics), "model_selection")
        improves, stop, self.falls = decided
        if improves:
            path = self._save(session, step)
            if distributed.is_chief():
                self._keep(path, step, metrics[self._spec.best_metric])
        if distributed.is_chief():
            _log.info("evaluation at step %d: %s", step, self._said(step, metrics))
            if stop:
                waited, name = self._without_improvement(), self._spec.best_metric
                _log.info("stopping at step %d: %d evaluations without an improvement of %s", step, waited, name)
        self.stopped = self.stopped or stop
        return stop

    def _decide(self, step, metrics):
        """Returns whether this is the best model so far, whether training is to stop, and `falls`; on rank 0."""
        if not distributed.is_chief():
            return None
        self._summarise(step, metrics)
        self._history.add(step, metrics)
        self._history.save(self._model_dir)
        name, direction, patience = self._spec.best_metric, self._spec.direction, self._spec.early_stopping_patience
        if not name:
            return False, False, 0
        if math.isnan(metrics[name]):
            _log.warning("evaluation at step %d: %s is no number, so it counts as no improvement", step, name)
        stop = bool(patience) and self._without_improvement() >= patience
        return self._history.improves(name, direction, metrics[name]), stop, self._count_falls()

    def _without_improvement(self) -> int:
        """Returns how many of the last evaluations did not improve the metric that counts, for rank 0."""
        spec = self._spec
        return self._history.without_improvement(spec.best_metric, spec.direction, spec.early_stopping_min_delta)

    def _said(self, step: int, metrics: dict[str, float]) -> str:
        """Returns what the log says of an evaluation, for rank 0: first the metric that counts and its best value."""
        first = self._spec.best_metric or next((name for name in metrics if name.split("/")[0] == "auc"), "loss")
        best, kept = self._history.best_by(first, DIRECTIONS.get(first.split("/")[0], "max")), ""
        if self._spec.best_metric:
            best, kept = self._history.best, f", kept in {path_of(self._model_dir) / 'best'}"
        if best is None:
            rank = "no number so far"
        elif best["step"] == step:
            rank = f"the best so far{kept}"
        else:
            rank = f"best so far {_text(first, best['value'])} at step {best['step']}"
        others = [f"{name} = {_text(name, value)}" for name, value in metrics.items() if name != first]
        return ", ".join([f"{first} = {_text(first, metrics[first])} ({rank})", *others])

    def _count_falls(self):
        """Returns `falls`, known to rank 0 only."""
        if not (self._plateau_patience and distributed.is_chief()):
            return 0
        spec = self._spec
        return self._history.falls(
            spec.best_metric, spec.direction, spec.early_stopping_min_delta, self._plateau_patience
        )

    def _keep(self, path, step, value):
        retention.keep_best(self._model_dir, path)
        name, direction = self._spec.best_metric, self._spec.direction
        self._history.best = {"metric": name, "direction": direction, "step": step, "value": value}
        # From here on the new one is the best; until here it was the one before.
        self._history.save(self._model_dir)
        retention.remove_other_bests(self._model_dir, step)

    def _summarise(self, step, metrics):
        if self._writer is None:
            name = f"eval_{self._spec.name}" if self._spec.name else "eval"
            self._writer = tf1.summary.FileWriter(os.path.join(local_directory(self._model_dir), name))
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)
        self._writer.flush()

    def close(self):
        """Ends the summaries."""
        if self._writer is not None:
            self._writer.close()


def _text(metric: str, value: float) -> str:
    """Returns a value of a metric as the log shows it."""
    return format(value, ".8f" if metric.split("/")[0] in _LOSSES else ".6g")


def is_over(model_dir, eval_spec, step):
    """Returns whether a run that is at `step` was stopped there for want of improvement. A collective."""
    over = None
    if distributed.is_chief() and eval_spec.early_stopping_patience:
        history = EvaluationHistory.load(model_dir)
        history.go_back(step)
        waited = history.without_improvement(
            eval_spec.best_metric, eval_spec.direction, eval_spec.early_stopping_min_delta
        )
        at_end = bool(history.evaluations) and history.evaluations[-1]["step"] == step
        over = at_end and waited >= eval_spec.early_stopping_patience
    return bool(distributed.broadcast_object(over, "early_stopping"))
