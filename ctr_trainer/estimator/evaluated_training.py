"""Evaluations within a training run."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator import exporters
from ctr_trainer.estimator.evaluation import Evaluation
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.hooks.ending_hooks import StopHook
from ctr_trainer.estimator.hooks.log_hooks import ProgressHook
from ctr_trainer.estimator.hooks.periods import EveryEpochs, EverySteps, ThrottledCheckpoints
from ctr_trainer.estimator.hooks.saving_hooks import EvaluationHook
from ctr_trainer.estimator.model_selection import ModelSelection
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import Training
from ctr_trainer.estimator.training_hooks import checkpoint_period
from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError


class InLoopEvaluation:
    """Evaluates a model in its own graph while another graph trains the model.

    The constructor must be called while the training graph is the default graph.

    An evaluation uses the dense variables of rank 0, as a checkpoint does. It reads the rows from the store after all
    ranks have flushed their rows. Keys without a row read zeros and get no row. With several workers, each evaluation
    adds one sync to the training. With one worker, the training is bit-identical.

    After `stop` has received a signal, no more batches are evaluated.

    Raises:
      UserError: the evaluation graph has variables that the training graph does not have.
    """

    def __init__(self, estimator: TrainedModel, eval_spec: EvalSpec, training: Training, stop: StopHook) -> None:
        self._eval_spec, self._training, self._stop = eval_spec, training, stop
        self._config = estimator.config
        sources = {v.op.name: v for v in tf1.global_variables()}
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf1.set_random_seed(self._config.seed)
            tf1.train.get_or_create_global_step()
            data = call_input_fn(eval_spec.input_fn, ModeKeys.EVAL, estimator.params, self._config)
            trained = training.feed.inputs
            saved = (trained.features.spec, trained.features.statistics) if trained.fed else None
            inputs = make_input(data, estimator.model_dir, saved)
            self._spec = estimator.model_fn(inputs.features, inputs.labels, ModeKeys.EVAL, estimator.params)
            embeddings = training.feed.embeddings
            configs: dict[str, TableConfig] = (
                {name: rows.config for name, rows in embeddings.rows.items()} if embeddings else {}
            )
            self._feed = inputs.connect(training.store, self._config, trained=configs, within_training=True)
            self._steps = eval_spec.steps or inputs.batches_per_epoch
            self._evaluation = Evaluation(self._feed, self._spec, eval_spec.metrics)
            variables = tf1.global_variables()
            unknown = [v.op.name for v in variables if v.op.name not in sources]
            if unknown:
                raise UserError(
                    f"the model_fn makes variables for evaluation that it does not make for training "
                    f"({', '.join(unknown)}), so they have no values: make the same variables in both modes"
                )
            self._sources = [sources[v.op.name] for v in variables]
            self._fed = [tf1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
            assign = tf.group(*(tf1.assign(v, fed) for v, fed in zip(variables, self._fed, strict=True)))
            self._values: dict[tf.Tensor, np.ndarray] = {}  # Each evaluation fills the scaffold's dict.
            self._scaffold = tf1.train.Scaffold(init_op=assign, init_feed_dict=self._values)

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics that `evaluate` returns."""
        return self._evaluation.metric_names

    def evaluate(self, session: tf1.Session) -> dict[str, Any] | None:
        """Returns the metrics over all ranks; None if a signal stops the training. A collective.

        Raises:
          ServiceLost: the embedding service is lost.
        """
        self._training.step.settle(session)
        values = distributed.broadcast_arrays(session.run(self._sources), "evaluated_variables")
        self._values.update(zip(self._fed, values, strict=True))
        self._training.feed.flush()
        distributed.barrier("evaluation_rows_flushed")
        self._evaluation.reset()
        self._feed.new_keys.in_training = self._training.feed.new_keys.in_training
        try:
            self._run()
        finally:
            self._feed.close()
        if distributed.all_sum(np.array(self._stop.is_asked, np.int32), "evaluation_stopped"):
            return None
        return self._evaluation.results()

    def _run(self) -> None:
        self._feed.rewind()
        hooks = [*self._feed.hooks, *(self._spec.evaluation_hooks or ()), *(self._eval_spec.hooks or ())]
        if distributed.is_chief() and self._steps:
            hooks.append(ProgressHook("evaluating", self._steps))
        steps = self._eval_spec.steps or None
        with self._graph.as_default():
            config = distributed.session_config(self._config.threads, given=self._config.session_config)
            creator = tf1.train.ChiefSessionCreator(self._scaffold, config=config)
            with tf1.train.MonitoredSession(creator, hooks) as session:
                while not (self._stop.is_asked or session.should_stop() or self._evaluation.steps == steps):
                    self._evaluation.step(session)
                    # To the watchdog, the evaluation is part of a training step.
                    distributed.watchdog().progress()

    def close(self) -> None:
        """Stops the threads that read the data."""
        self._feed.close()


class EvaluatedTraining(EvaluationHook):
    """Evaluates during training, see `EvalSpec`. Construct it while the training graph is the default graph."""

    def __init__(self, estimator: TrainedModel, eval_spec: EvalSpec, training: Training, stop: StopHook) -> None:
        period = _period(eval_spec, estimator.config, training.feed)
        super().__init__(self._evaluate_and_export, period, training.clock, stop)
        self._in_loop = InLoopEvaluation(estimator, eval_spec, training, stop)
        self._selection = ModelSelection(
            evaluate=self._in_loop.evaluate,
            metric_names=self._in_loop.metric_names,
            eval_spec=eval_spec,
            model_dir=estimator.model_dir,
            save=training.save,
            start=training.job.start,
            plateau=notes().plateau,
        )
        self._estimator, self._exporters = estimator, tuple(eval_spec.exporters or ())
        self._save, self._last_path = training.save, ""

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._selection.begin(session)

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`."""
        if self._exporters and self._selection.metrics:
            self._export(self._selection.metrics, is_final=True)
        return {
            "evaluation": self._selection.metrics,
            "evaluation_seconds": round(self._clock.seconds["evaluation"], 3),
            "stopped_early": self._selection.stopped,
        }

    def _evaluate_and_export(self, session: tf1.Session, step: int) -> bool:
        """Evaluates; if there are exporters, saves a checkpoint and calls them. A collective."""
        stop = self._selection(session, step)
        metrics = self._selection.metrics
        if self._exporters and metrics is not None and metrics["global_step"] == step:
            self._last_path = self._save(session, step)
            self._export(metrics, is_final=False)
        return stop

    def _export(self, metrics: dict[str, Any], is_final: bool) -> None:
        if distributed.is_chief() and self._last_path:
            exporters.run(self._exporters, self._estimator, self._last_path, metrics, is_final)

    def close(self) -> None:
        """Stops the threads that read data, and closes the summaries. Also called after an error."""
        self._in_loop.close()
        self._selection.close()


def _period(eval_spec: EvalSpec, config: RunConfig, feed: Feed) -> EverySteps:
    """Returns the period of the evaluations."""
    if eval_spec.every_n_epochs:
        return EveryEpochs(eval_spec.every_n_epochs, notes().run_length, ("eval_epochs", "eval_steps"))
    if eval_spec.every_n_steps is not None:
        return EverySteps(eval_spec.every_n_steps)
    return ThrottledCheckpoints(
        checkpoint_period(config, feed),
        eval_spec.throttle_secs or 0.0,
        eval_spec.start_delay_secs or 0.0,
        distributed.is_chief(),
        functools.partial(distributed.all_sum, name="evaluation_due"),
    )
