"""The evaluations of a training run, or none."""

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from ctr_trainer.estimator import exporters, plateau, quality
from ctr_trainer.estimator.in_loop_evaluation import InLoopEvaluation
from ctr_trainer.estimator.model_selection import ModelSelection
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.estimator.training_hooks import checkpoint_period
from ctr_trainer.graph_notes import run_length, step_plan
from ctr_trainer.hooks.evaluation_hook import EvaluationHook
from ctr_trainer.hooks.periods import EveryEpochs, EverySteps, ThrottledCheckpoints
from ctr_trainer.hooks.plateau_hook import PlateauHook
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig

tf1 = tf.compat.v1


class NoEvaluations:
    """A training run without any; made in the training graph's scope.

    Attributes:
      hooks: of the training's session.
    """

    hooks = ()

    def __init__(self):
        self._rates = quality.current()

    def results(self):
        """-> what `Estimator.train` is to return besides: `quality_advice`, a list of dicts of `flag` and `why`."""
        advice = quality.advise([], None, None, self._rates)
        return {"quality_advice": [dataclasses.asdict(each) for each in advice]}

    def close(self):
        """Ends what reads data and writes summaries."""


class EvaluatedTraining(NoEvaluations):
    """A training run with evaluations by an `EvalSpec`.

    Args:
      estimator: the `Estimator` in training.
      eval_spec: the `EvalSpec`.
      feed: the `Feed` of the training.
      store: of `open_store`.
      save: f(session, step) -> path; a collective.
      start: the step that training goes on from.
      clock: `Clock` of the training thread.
      stop: `StopHook` of the training.
      settle: see `InLoopEvaluation`.
    """

    def __init__(self, estimator, eval_spec, feed, store, save, start, clock, stop, settle=None):
        self._in_loop = InLoopEvaluation(estimator, eval_spec, feed, store, stop, settle)
        super().__init__()
        self._positive_weight = getattr(estimator.params, "positive_weight", 1.0)
        lowered = plateau.current()
        evaluate = self._selection = ModelSelection(
            self._in_loop.evaluate,
            self._in_loop.metric_names,
            eval_spec,
            estimator.model_dir,
            save,
            start,
            lowered.patience if lowered else 0,
        )
        if lowered:
            evaluate = PlateauHook(self._selection, lowered)
        self._clock, self._estimator, self._exporters = clock, estimator, eval_spec.exporters
        self._evaluate, self._save = evaluate, save
        self._last_path: str | None = None
        acting = self._evaluate_and_export if self._exporters else evaluate
        evaluations = EvaluationHook(acting, _period(eval_spec, estimator.config), clock, stop)
        self.hooks = [evaluate, evaluations] if lowered else [evaluations]

    def results(self):
        """-> dict of `evaluation` (the last one's metrics), `evaluation_seconds`, `stopped_early` and `quality_advice`.

        A collective.
        """
        if self._exporters and self._selection.metrics:
            self._export(self._selection.metrics, is_final=True)
        return {
            "evaluation": self._selection.metrics,
            "evaluation_seconds": round(self._clock.seconds["evaluation"], 3),
            "stopped_early": self._selection.stopped,
            "quality_advice": self._selection.advice(self._rates, self._positive_weight),
        }

    def _evaluate_and_export(self, session: tf1.Session, step: int) -> bool:
        """Evaluates, saves a checkpoint and has the exporters look at it. A collective."""
        stop = self._evaluate(session, step)
        metrics = self._selection.metrics
        if metrics is not None and metrics["global_step"] == step:
            self._last_path = self._save(session, step)
            self._export(metrics, is_final=False)
        return stop

    def _export(self, metrics: dict[str, Any], is_final: bool) -> None:
        if distributed.is_chief() and self._last_path is not None:
            exporters.run(self._exporters, self._estimator, self._last_path, metrics, is_final)

    def close(self):
        self._in_loop.close()
        self._selection.close()


def _period(eval_spec: EvalSpec, config: RunConfig) -> EverySteps:
    """Returns when evaluations are due."""
    if eval_spec.every_n_epochs:
        length, accumulation_steps = run_length.current(), step_plan.current().accumulation_steps
        return EveryEpochs(eval_spec.every_n_epochs, length, accumulation_steps, ("eval_epochs", "eval_steps"))
    if eval_spec.every_n_steps is not None:
        return EverySteps(eval_spec.every_n_steps)
    return ThrottledCheckpoints(
        checkpoint_period(config),
        eval_spec.throttle_secs or 0.0,
        eval_spec.start_delay_secs or 0.0,
        distributed.is_chief(),
        functools.partial(distributed.all_sum, name="evaluation_due"),
    )
