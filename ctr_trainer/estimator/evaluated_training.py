"""Evaluations while training, and what follows: the best checkpoint, early stopping, learning rates, exports."""

import copy
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint import retention
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.estimator import exporters
from ctr_trainer.estimator.advice import about_quality
from ctr_trainer.estimator.built_model import TrainingJob
from ctr_trainer.estimator.in_loop_evaluation import InLoopEvaluation
from ctr_trainer.estimator.run_length import EveryEpochs, EverySeconds, EverySteps, RunLength
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import Training
from ctr_trainer.models.metrics.evaluation_metrics import DIRECTIONS
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.meetings import StopRequest
from ctr_trainer.system.files.paths import Advanced, path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_LOSSES = ("loss", "logloss")


class EvaluatedTraining:
    """Evaluates during training, see `EvalSpec`: logs and records the metrics, and keeps the best checkpoint.

    Rank 0 decides and broadcasts the decision. After a restart, it uses the recorded evaluations up to the step of the
    checkpoint, so the patience is counted as if the run had not been interrupted.

    Construct it while the training graph is the default graph.

    Raises UserError: the model has no metric of the name `EvalSpec.best_metric`.
    """

    def __init__(self, estimator: TrainedModel, eval_spec: EvalSpec, training: Training, stop: StopRequest) -> None:
        self._estimator, self._spec, self._save = estimator, eval_spec, training.save
        self._model_dir, self._clock = estimator.model_dir, training.clock
        self._evaluated = -1 if is_missing(training.job) else training.job.start  # The last step that was evaluated.
        self._plateau = training.model.step.plateau  # Lowers the learning rates if evaluations do not improve.
        self._period = EvaluationPeriod(eval_spec, training.model.step.run_length)
        self._in_loop = InLoopEvaluation(estimator, eval_spec, training, stop)
        names = self._in_loop.metric_names
        if eval_spec.best_metric and eval_spec.best_metric not in names:
            raise UserError(
                f"best_metric={eval_spec.best_metric}: the model has no such metric; it has {', '.join(names)}"
            )
        self._metrics: dict[str, Any] | None = None  # Of the last evaluation.
        self._stopped = self._cancelled = False  # By evaluations without an improvement; the last one, by a signal.
        self._exported_from = ""  # Path of the last checkpoint that exporters got.
        self._history = EvaluationHistory()  # Only rank 0 records evaluations.
        self._writer: tf1.summary.FileWriter | None = None
        if distributed.is_chief():
            self._history = _history(training.job)
        start = training.job.start
        self._had_begun = distributed.broadcast_object(0 < self._history.due == start, "evaluation_had_begun")
        falls = self._count_falls(_waits(self._history, eval_spec))
        self._falls = distributed.broadcast_object(falls, "learning_rate_falls") if self._plateau else 0

    def begin(self, session: tf1.Session) -> None:
        """Lowers the learning rates as the evaluations so far require."""
        self._period.begin()
        if self._plateau and self._falls:
            factor = self._plateau.set(session, self._falls)
            _log.info("learning rates resume at %g of their full value, because of the evaluations so far", factor)

    def resume(self, session: tf1.Session, step: int) -> bool:
        """Evaluates before the first step if a signal or a kill interrupted the evaluation due there. A collective.

        Returns whether to stop training.
        """
        is_due = self._had_begun or self._period.is_due(step, saves=False)
        return self._evaluated != step and is_due and self._evaluate(session, step)

    def evaluate_if_due(self, session: tf1.Session, step: int, saves: bool) -> bool:
        """Evaluates after `step`, at which a checkpoint was saved if `saves`, if it is due. A collective.

        Returns whether to stop training.
        """
        return self._period.is_due(step, saves) and self._evaluate(session, step)

    def finish(self, session: tf1.Session, step: int) -> bool:
        """Evaluates after the last step, unless this or an interrupted run has done so already. A collective.

        Returns False if a signal has cancelled the evaluation.
        """
        if self._evaluated != step:
            self._evaluate(session, step)
        return not self._cancelled

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`."""
        if self._metrics:
            self._export(is_final=True)
        if advice := about_quality(self._history.current, keeps_best=bool(self._spec.best_metric)):
            _log.info("most likely to make it better: %s", advice)
        return {
            "evaluation": self._metrics,
            "evaluation_seconds": round(self._clock.seconds["evaluation"], 3),
            "stopped_early": self._stopped,
        }

    def close(self) -> None:
        """Stops the threads that read data, and closes the summaries. Also called after an error."""
        self._in_loop.close()
        if self._writer is not None:
            self._writer.close()

    def _evaluate(self, session: tf1.Session, step: int) -> bool:
        """Evaluates; does what follows from the metrics; returns whether to stop training."""
        self._evaluated = step
        with self._clock.within("evaluation"):
            if distributed.is_chief():
                self._history.due = step
                self._history.save(self._model_dir)
            found = self._in_loop.evaluate(session)
            self._cancelled = found is None
            if found is None:  # The checkpoint is then of this step, so that a resumed training evaluates it.
                return True
            metrics = recorded(found)
            self._metrics = {"global_step": step, **metrics}
            fallen, decision = self._falls, self._decide(step, metrics) if distributed.is_chief() else None
            improves, stop, self._falls = distributed.broadcast_object(decision, "model_selection")
            if improves:
                path = self._save(session, step)
                distributed.from_chief(lambda advanced: self._keep(path, step, advanced), "best_checkpoint")
            if distributed.is_chief():
                _log.info("evaluation at step %d: %s", step, self._described(step, metrics))
            if self._spec.exporters:
                self._exported_from = self._save(session, step)
                self._export(is_final=False)
            if distributed.is_chief():
                # This write records the evaluation, and makes a new best checkpoint the best one. After a kill before
                # it, the previous one is still the best, and a restart evaluates this step again.
                self._history.due = 0
                self._history.save(self._model_dir)
                if improves:
                    retention.remove_other_bests(self._model_dir, step)
                if stop:
                    waited, name = _waits(self._history, self._spec)[-1], self._spec.best_metric
                    _log.info("stopping at step %d: %d evaluations without an improvement of %s", step, waited, name)
            if self._plateau and self._falls != fallen and not stop:
                factor = self._plateau.set(session, self._falls)
                text = "evaluation at step %d: no improvement; learning rates fall to %g of their full value"
                _log.info(text, step, factor)
        self._stopped = self._stopped or stop
        return stop

    def _keep(self, path: str, step: int, advanced: Advanced) -> None:
        """Keeps the checkpoint of the last evaluation as the best one, once the history is saved."""
        name = self._spec.best_metric or ""
        retention.keep_best(self._model_dir, path, advanced)
        value = self._history.evaluations[-1][name]
        self._history.best = {"metric": name, "direction": self._spec.direction, "step": step, "value": value}

    def _export(self, is_final: bool) -> None:
        """Calls each exporter with the last checkpoint that was evaluated, on rank 0. A collective."""

        def export(advanced: Advanced) -> None:
            estimator = copy.copy(self._estimator)
            estimator.advanced = advanced
            for exporter in self._spec.exporters or ():
                parent = str(path_of(self._model_dir) / exporters.DIRECTORY / exporter.name)
                exporter.export(estimator, parent, self._exported_from, self._metrics, is_final)
                advanced(f"exported {exporter.name}")

        if self._exported_from:
            distributed.from_chief(export, "exports")

    def _decide(self, step: int, metrics: Mapping[str, float]) -> tuple[bool, bool, int]:
        """Adds an evaluation. Returns whether it is the best so far, whether to stop training, and the falls."""
        self._summarize(step, metrics)
        self._history.add(step, metrics)
        name, patience = self._spec.best_metric, self._spec.early_stopping_patience
        if not name:
            return False, False, 0
        if math.isnan(metrics[name]):
            _log.warning("evaluation at step %d: %s is NaN, so it counts as no improvement", step, name)
        waits = _waits(self._history, self._spec)
        stop = bool(patience) and waits[-1] >= patience
        return self._history.improves(name, self._spec.direction, metrics[name]), stop, self._count_falls(waits)

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

    def _count_falls(self, waits: Sequence[int]) -> int:
        """Returns how often the evaluations so far, with these `_waits`, lower the learning rates."""
        return sum(wait > 0 and wait % self._plateau.patience == 0 for wait in waits) if self._plateau else 0

    def _summarize(self, step: int, metrics: Mapping[str, float]) -> None:
        name = f"eval_{self._spec.name}" if self._spec.name else "eval"
        if self._writer is None:
            self._writer = tf1.summary.FileWriter(os.path.join(local_directory(self._model_dir), name))
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)
        self._writer.flush()
        if tracker := self._estimator.config.tracker:
            tracker.send({f"{name}/{metric}": value for metric, value in metrics.items()}, step)


def recorded(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of an evaluation, which `EvaluationHistory` has."""
    return {k: v for k, v in metrics.items() if not k.startswith(("reliability", "new_keys", "global_step"))}


def _text(metric: str, value: float) -> str:
    """Returns a metric's value as the log shows it."""
    return format(value, ".8f" if metric.split("/")[0] in _LOSSES else ".6g")


def _waits(history: EvaluationHistory, spec: EvalSpec) -> list[int]:
    """Returns for each evaluation how many there were since `best_metric` last improved."""
    return history.waits(spec.best_metric or "", spec.direction, spec.early_stopping_min_delta)


def _history(job: TrainingJob) -> EvaluationHistory:
    """Returns the evaluations up to the step at which a training starts."""
    history = EvaluationHistory.load(job.model_dir)
    history.go_back(job.start)
    history.begin = job.data_begin
    return history


def is_missing(job: TrainingJob) -> bool:
    """Returns whether the step at which a training starts was trained but not evaluated. A collective."""
    missing = False
    if distributed.is_chief() and job.start > job.data_begin:
        missing = all(each["step"] != job.start for each in _history(job).current)
    return distributed.broadcast_object(missing, "evaluation_is_missing")


def is_over(job: TrainingJob, eval_spec: EvalSpec) -> bool:
    """Returns whether early stopping ended the run at the step at which a training starts. A collective."""
    over = False
    if distributed.is_chief() and eval_spec.early_stopping_patience:
        history = _history(job)
        at_end = bool(history.current) and history.current[-1]["step"] == job.start
        over = at_end and _waits(history, eval_spec)[-1] >= eval_spec.early_stopping_patience
    return distributed.broadcast_object(over, "early_stopping")


class EvaluationPeriod:
    """Determines when to evaluate: after steps, epochs, or checkpoints that are some time apart by rank 0's clock."""

    def __init__(self, spec: EvalSpec, length: RunLength) -> None:
        self._steps: EverySteps | None = None  # None to evaluate after checkpoints.
        if spec.every_n_epochs:
            self._steps = EveryEpochs(spec.every_n_epochs, length)
        elif spec.every_n_steps is not None:
            self._steps = EverySteps(spec.every_n_steps)
        self._wait, self._throttle_secs = EverySeconds(spec.start_delay_secs or 0), spec.throttle_secs or 0

    def begin(self) -> None:
        """Starts the period when training begins."""
        self._wait.begin()

    def is_due(self, step: int, saves: bool) -> bool:
        """Returns whether to evaluate after `step`. A collective after a checkpoint, if the clock decides."""
        if self._steps is not None:
            return self._steps.is_due(step)
        decided = saves and distributed.is_chief() and self._wait.is_over()
        if not saves or not distributed.all_sum(np.array([decided], np.int64), "evaluation_due")[0]:
            return False
        self._wait = EverySeconds(self._throttle_secs)
        return True
