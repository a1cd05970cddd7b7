"""The evaluations of a training run, or none."""

import dataclasses

from ctr_trainer.estimator import plateau, quality
from ctr_trainer.estimator.in_loop_evaluation import InLoopEvaluation
from ctr_trainer.estimator.model_selection import ModelSelection
from ctr_trainer.graph_notes import run_length, step_plan
from ctr_trainer.hooks.evaluation_hook import EvaluationHook
from ctr_trainer.hooks.periods import EveryEpochs, EverySteps
from ctr_trainer.hooks.plateau_hook import PlateauHook


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
        self._clock = clock
        evaluations = EvaluationHook(evaluate, _period(eval_spec), clock, stop)
        self.hooks = [evaluate, evaluations] if lowered else [evaluations]

    def results(self):
        """-> dict of `evaluation` (the last one's metrics), `evaluation_seconds`, `stopped_early` and `quality_advice`.

        A collective.
        """
        return {
            "evaluation": self._selection.metrics,
            "evaluation_seconds": round(self._clock.seconds["evaluation"], 3),
            "stopped_early": self._selection.stopped,
            "quality_advice": self._selection.advice(self._rates, self._positive_weight),
        }

    def close(self):
        self._in_loop.close()
        self._selection.close()


def _period(eval_spec):
    """-> when evaluations are due."""
    if not eval_spec.every_n_epochs:
        return EverySteps(eval_spec.every_n_steps)
    length, accumulation_steps = run_length.current(), step_plan.current().accumulation_steps
    return EveryEpochs(eval_spec.every_n_epochs, length, accumulation_steps, ("eval_epochs", "eval_steps"))
