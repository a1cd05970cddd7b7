"""What follows from the evaluations of a training run: the best checkpoint, early stopping, learning rates."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint import retention
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.estimator.schedules import Plateau
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.models.metrics.evaluation_metrics import DIRECTIONS
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_LOSSES = ("loss", "logloss")


class ModelSelection:
    """Evaluates when called, logs, records and summarizes the metrics, and keeps the checkpoint if it is the best.

    Rank 0 decides and broadcasts the decision. After a restart, it uses the recorded evaluations up to the step of the
    checkpoint, so the patience is counted as if the run had not been interrupted.

    Args:
      evaluate: f(session) -> dict of metrics, or None if a signal stops the training; a collective.
      metric_names: names of the metrics that `evaluate` returns.
      model_dir: directory of the history, the best checkpoint and the summaries.
      save: f(session, step) -> path of the checkpoint of that step; a collective.
      start: the step from which training resumes.
      plateau: lowers the learning rates if evaluations do not improve; None to leave them unchanged.

    Attributes:
      falls: how often the evaluations so far have lowered the learning rates, see `EvaluationHistory.falls`.
      metrics: metrics of the last evaluation, with `global_step`; None before the first one.
      stopped: whether early stopping has ended the training.

    Raises:
      UserError: the model has no metric of the name `EvalSpec.best_metric`.
    """

    def __init__(
        self,
        evaluate: Callable[[tf1.Session], dict[str, Any] | None],
        metric_names: Sequence[str],
        eval_spec: EvalSpec,
        model_dir: str,
        save: Callable[[tf1.Session, int], str],
        start: int,
        plateau: Plateau | None = None,
    ) -> None:
        self._evaluate, self._spec, self._model_dir, self._save = evaluate, eval_spec, model_dir, save
        if eval_spec.best_metric and eval_spec.best_metric not in metric_names:
            raise UserError(
                f"best_metric={eval_spec.best_metric}: the model has no such metric; it has {', '.join(metric_names)}"
            )
        self.metrics: dict[str, Any] | None = None
        self.stopped = False
        self._history = EvaluationHistory()  # Only rank 0 records evaluations.
        self._writer: tf1.summary.FileWriter | None = None
        if distributed.is_chief():
            self._history = EvaluationHistory.load(model_dir)
            self._history.go_back(start)
        self._plateau, self.falls = plateau, 0
        if plateau:
            self.falls = distributed.broadcast_object(self._count_falls(), "learning_rate_falls")

    def begin(self, session: tf1.Session) -> None:
        """Lowers the learning rates as the evaluations so far require."""
        if self._plateau and self.falls:
            factor = self._plateau.set(session, self.falls)
            _log.info("learning rates resume at %g of their full value, because of the evaluations so far", factor)

    def __call__(self, session: tf1.Session, step: int) -> bool:
        """Evaluates, and returns whether to stop training. A collective."""
        found, fallen = self._evaluate(session), self.falls
        if found is None:
            return False
        metrics = {k: v for k, v in found.items() if not k.startswith(("reliability", "new_keys"))}
        self.metrics = {"global_step": step, **metrics}
        decision = self._decide(step, metrics) if distributed.is_chief() else None
        improves, stop, self.falls = distributed.broadcast_object(decision, "model_selection")
        if improves:
            path = self._save(session, step)
            if distributed.is_chief():
                self._keep(path, step, metrics)
        if distributed.is_chief():
            _log.info("evaluation at step %d: %s", step, self._described(step, metrics))
            if stop:
                waited, name = _without_improvement(self._history, self._spec), self._spec.best_metric
                _log.info("stopping at step %d: %d evaluations without an improvement of %s", step, waited, name)
        if self._plateau and self.falls != fallen:
            factor = self._plateau.set(session, self.falls)
            _log.info(
                "evaluation at step %d: no improvement; learning rates fall to %g of their full value", step, factor
            )
        self.stopped = self.stopped or stop
        return stop

    def _decide(self, step: int, metrics: Mapping[str, float]) -> tuple[bool, bool, int]:
        """Records an evaluation. Returns whether it is the best so far, whether to stop training, and `falls`."""
        self._summarize(step, metrics)
        self._history.add(step, metrics)
        self._history.save(self._model_dir)
        name, patience = self._spec.best_metric, self._spec.early_stopping_patience
        if not name:
            return False, False, 0
        if math.isnan(metrics[name]):
            _log.warning("evaluation at step %d: %s is NaN, so it counts as no improvement", step, name)
        stop = bool(patience) and _without_improvement(self._history, self._spec) >= patience
        return self._history.improves(name, self._spec.direction, metrics[name]), stop, self._count_falls()

    def _described(self, step: int, metrics: Mapping[str, float]) -> str:
        """Returns the log text for an evaluation, which begins with the selected metric and its best value."""
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

    def _count_falls(self) -> int:
        """Returns `falls` on rank 0."""
        spec = self._spec
        if not (self._plateau and spec.best_metric):
            return 0
        return self._history.falls(
            spec.best_metric, spec.direction, spec.early_stopping_min_delta, self._plateau.patience
        )

    def _keep(self, path: str, step: int, metrics: Mapping[str, float]) -> None:
        retention.keep_best(self._model_dir, path)
        name, direction = self._spec.best_metric or "", self._spec.direction
        self._history.best = {"metric": name, "direction": direction, "step": step, "value": metrics[name]}
        # This write makes the new checkpoint the best one. Before it, the previous one is still the best.
        self._history.save(self._model_dir)
        retention.remove_other_bests(self._model_dir, step)

    def _summarize(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            name = f"eval_{self._spec.name}" if self._spec.name else "eval"
            self._writer = tf1.summary.FileWriter(os.path.join(local_directory(self._model_dir), name))
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the summary file."""
        if self._writer is not None:
            self._writer.close()


def _text(metric: str, value: float) -> str:
    """Returns a metric's value as the log shows it."""
    return format(value, ".8f" if metric.split("/")[0] in _LOSSES else ".6g")


def _without_improvement(history: EvaluationHistory, spec: EvalSpec) -> int:
    """Returns the number of evaluations since `best_metric` last improved."""
    return history.without_improvement(spec.best_metric or "", spec.direction, spec.early_stopping_min_delta)


def is_over(model_dir: str, eval_spec: EvalSpec, step: int) -> bool:
    """Returns whether early stopping ended the run at `step`. A collective."""
    over = False
    if distributed.is_chief() and eval_spec.early_stopping_patience:
        history = EvaluationHistory.load(model_dir)
        history.go_back(step)
        at_end = bool(history.evaluations) and history.evaluations[-1]["step"] == step
        over = at_end and _without_improvement(history, eval_spec) >= eval_spec.early_stopping_patience
    return distributed.broadcast_object(over, "early_stopping")
