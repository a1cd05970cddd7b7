"""Evaluations within a training run."""

import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator import exporters
from ctr_trainer.estimator.evaluation import Evaluation
from ctr_trainer.estimator.hooks.log_hooks import ProgressHook
from ctr_trainer.estimator.model_selection import ModelSelection
from ctr_trainer.estimator.periods import EveryEpochs, EverySteps
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import Training
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.meetings import StopRequest
from ctr_trainer.system.messages.errors import UserError


class InLoopEvaluation:
    """Evaluates a model in its own graph while another graph trains the model.

    The constructor must be called while the training graph is the default graph.

    An evaluation uses the dense variables of rank 0, as a checkpoint does. It reads the rows from the store after all
    ranks have flushed their rows. Keys without a row read zeros and get no row. With several workers, each evaluation
    adds one sync to the training. With one worker, the training is bit-identical.

    After `stop` was asked for, no more batches are evaluated.

    Raises:
      UserError: the evaluation graph has variables that the training graph does not have.
    """

    def __init__(self, estimator: TrainedModel, eval_spec: EvalSpec, training: Training, stop: StopRequest) -> None:
        self._eval_spec, self._training, self._stop = eval_spec, training, stop
        self._config = estimator.config
        sources = {v.op.name: v for v in tf1.global_variables()}
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf1.set_random_seed(self._config.seed)
            tf1.train.get_or_create_global_step()
            data = call_input_fn(eval_spec.input_fn, ModeKeys.EVAL, estimator.params, self._config)
            trained = training.model.inputs
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
        self._training.dense.settle(session)
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
        if distributed.all_sum(np.array(self._stop.asked > 0, np.int32), "evaluation_stopped"):
            return None
        return self._evaluation.results()

    def _run(self) -> None:
        self._feed.rewind()
        hooks = [*(self._spec.evaluation_hooks or ()), *(self._eval_spec.hooks or ())]
        if distributed.is_chief() and self._steps:
            hooks.append(ProgressHook("evaluating", self._steps))
        steps = self._eval_spec.steps or None
        with self._graph.as_default():
            config = distributed.session_config(self._config.threads, given=self._config.session_config)
            creator = tf1.train.ChiefSessionCreator(self._scaffold, config=config)
            with tf1.train.MonitoredSession(creator, hooks) as session:
                while not (self._stop.asked or session.should_stop() or self._evaluation.steps == steps):
                    self._evaluation.step(session)
                    # To the watchdog, the evaluation is part of a training step.
                    distributed.watchdog().progress()

    def close(self) -> None:
        """Stops the threads that read the data."""
        self._feed.close()


class EvaluatedTraining:
    """Evaluates during training, see `EvalSpec`. Construct it while the training graph is the default graph."""

    def __init__(self, estimator: TrainedModel, eval_spec: EvalSpec, training: Training, stop: StopRequest) -> None:
        self._period = _period(eval_spec, training.model.step.run_length)
        self._clock, self._evaluated = training.clock, training.job.start
        self._in_loop = InLoopEvaluation(estimator, eval_spec, training, stop)
        self._selection = ModelSelection(
            evaluate=self._in_loop.evaluate,
            metric_names=self._in_loop.metric_names,
            eval_spec=eval_spec,
            model_dir=estimator.model_dir,
            save=training.save,
            start=training.job.start,
            plateau=training.model.step.plateau,
        )
        self._estimator, self._exporters = estimator, tuple(eval_spec.exporters or ())
        self._save, self._last_path = training.save, ""

    def begin(self, session: tf1.Session) -> None:
        """Lowers the learning rates as the evaluations so far require."""
        self._period.begin()
        self._selection.begin(session)

    def evaluate_if_due(self, session: tf1.Session, step: int, saves: bool) -> bool:
        """Evaluates after `step` if it is due; returns whether to stop training. A collective.

        Args:
          saves: whether a checkpoint was saved after `step`.
        """
        return self._period.is_due(step, saves) and self._evaluate(session, step)

    def finish(self, session: tf1.Session, step: int) -> None:
        """Evaluates after the last step, unless that was done already. A collective."""
        if self._evaluated != step:
            self._evaluate(session, step)

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`."""
        if self._exporters and self._selection.metrics:
            self._export(self._selection.metrics, is_final=True)
        return {
            "evaluation": self._selection.metrics,
            "evaluation_seconds": round(self._clock.seconds["evaluation"], 3),
            "stopped_early": self._selection.stopped,
        }

    def _evaluate(self, session: tf1.Session, step: int) -> bool:
        """Evaluates; if there are exporters, saves a checkpoint and calls them. Returns whether to stop training."""
        with self._clock.within("evaluation"):
            stop = self._selection(session, step)
            metrics = self._selection.metrics
            if self._exporters and metrics is not None and metrics["global_step"] == step:
                self._last_path = self._save(session, step)
                self._export(metrics, is_final=False)
        self._evaluated = step
        return stop

    def _export(self, metrics: dict[str, Any], is_final: bool) -> None:
        if distributed.is_chief() and self._last_path:
            exporters.run(self._exporters, self._estimator, self._last_path, metrics, is_final)

    def close(self) -> None:
        """Stops the threads that read data, and closes the summaries. Also called after an error."""
        self._in_loop.close()
        self._selection.close()


class EvaluationPeriod:
    """Determines when to evaluate: after steps, epochs, or checkpoints that are some time apart.

    Args:
      period: the period in steps or epochs; None to evaluate after checkpoints, by the clock of rank 0.
    """

    def __init__(self, period: EverySteps | None, start_delay_secs: float, throttle_secs: float) -> None:
        self._period, self._start_delay_secs, self._throttle_secs = period, start_delay_secs, throttle_secs
        self._from = 0.0

    def begin(self) -> None:
        """Starts the period when training begins."""
        self._from = time.monotonic() + self._start_delay_secs

    def is_due(self, step: int, saves: bool) -> bool:
        """Returns whether to evaluate after `step`. A collective after a checkpoint, if the clock decides."""
        if self._period is not None:
            return self._period.is_due(step)
        if not saves:
            return False
        decided = distributed.is_chief() and time.monotonic() >= self._from
        if not distributed.all_sum(np.array([decided], np.int64), "evaluation_due")[0]:
            return False
        self._from = time.monotonic() + self._throttle_secs
        return True


def _period(eval_spec: EvalSpec, length: RunLength) -> EvaluationPeriod:
    """Returns the period of the evaluations."""
    period: EverySteps | None = None
    if eval_spec.every_n_epochs:
        period = EveryEpochs(eval_spec.every_n_epochs, length, ("eval_epochs", "eval_steps"))
    elif eval_spec.every_n_steps is not None:
        period = EverySteps(eval_spec.every_n_steps)
    return EvaluationPeriod(period, eval_spec.start_delay_secs or 0.0, eval_spec.throttle_secs or 0.0)
