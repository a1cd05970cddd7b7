"""The evaluations of a training run, or none."""

from ctr_trainer.estimator.in_loop_evaluation import InLoopEvaluation
from ctr_trainer.estimator.model_selection import ModelSelection
from ctr_trainer.hooks.evaluation_hook import EvaluationHook


class NoEvaluations:
    """A training run without any.

    Attributes:
      hooks: to be run after those that train, sync and save.
    """

    hooks = ()

    def results(self):
        """-> what `Estimator.train` is to return besides."""
        return {}

    def close(self):
        """Ends what reads data and writes summaries."""


class EvaluatedTraining(NoEvaluations):
    """A training run with evaluations by an `EvalSpec`; made in the training graph's scope.

    Args:
      estimator: the `Estimator` in training.
      eval_spec: the `EvalSpec`.
      inputs: the training's, connected.
      store: of `open_store`.
      save: f(session, step) -> path; a collective.
      start: the step that training goes on from.
      hooks: of the training; those that have `exclude(seconds)` are told what an evaluation took.
      settle: see `InLoopEvaluation`.
      phases: `Phases` of the training thread; None where nobody looks at them.
    """

    def __init__(self, estimator, eval_spec, inputs, store, save, start, hooks, settle=None, phases=None):
        self._in_loop = InLoopEvaluation(estimator, eval_spec, inputs, store, settle)
        self._selection = ModelSelection(
            self._in_loop.evaluate, self._in_loop.metric_names, eval_spec, estimator.model_dir, save, start
        )
        timed = [hook for hook in hooks if hasattr(hook, "exclude")]
        self.hooks = [EvaluationHook(self._selection, eval_spec.every_n_steps, timed, phases)]

    def results(self):
        """-> dict of `evaluation` (the last one's metrics), `evaluation_seconds` and `stopped_early`."""
        return {
            "evaluation": self._selection.metrics,
            "evaluation_seconds": round(self.hooks[0].seconds, 3),
            "stopped_early": self._selection.stopped,
        }

    def close(self):
        self._in_loop.close()
        self._selection.close()
