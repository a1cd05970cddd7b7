"""An evaluation of a model in its own graph, while another graph trains the model."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.batch_feed import connect
from ctr_trainer.estimator.evaluation import Evaluation
from ctr_trainer.estimator.hooks.log_hooks import ProgressHook
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import Training, default_graph
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.meetings import Meetings, StopRequest
from ctr_trainer.system.messages.errors import UserError


class InLoopEvaluation:
    """Evaluates a model in its own graph while another graph trains the model.

    The constructor must be called while the training graph is the default graph.

    An evaluation uses the dense variables of rank 0, as a checkpoint does. It reads the rows from the store after all
    ranks have flushed their rows. Keys without a row read zeros and get no row. With several workers, each evaluation
    adds one sync to the training. With one worker, the training is bit-identical.

    After `stop` was asked for, no more batches are evaluated. Ranks with the same number of batches meet about once a
    second, so that all of them end together, unless the program has hooks.

    Raises UserError: the evaluation graph has variables that the training graph does not have.
    """

    def __init__(self, estimator: TrainedModel, eval_spec: EvalSpec, training: Training, stop: StopRequest) -> None:
        self._eval_spec, self._training, self._stop = eval_spec, training, stop
        self._config = estimator.config
        sources = {v.op.name: v for v in tf1.global_variables()}
        self._graph = tf.Graph()
        with default_graph(self._graph, self._config):
            data = call_input_fn(eval_spec.input_fn, ModeKeys.EVAL, estimator.params, self._config)
            trained = training.model.inputs
            saved = (trained.features.spec, trained.features.statistics) if trained.fed else None
            inputs = make_input(data, estimator.model_dir, saved)
            self._spec = estimator.model_fn(inputs.features, inputs.labels, ModeKeys.EVAL, estimator.params)
            rows = training.feed.embeddings.rows if training.feed.embeddings else {}
            configs = {name: each.config for name, each in rows.items()}
            self._feed = connect(inputs, training.store, self._config, trained=configs, within_training=True)
            self._steps = eval_spec.steps or inputs.batches_per_epoch
            self._hooks = [*(self._spec.evaluation_hooks or ()), *(eval_spec.hooks or ())]  # May stop one rank alone.
            known = np.array([0 if self._hooks else inputs.batches_per_epoch or 0])
            counts = distributed.all_gather(known, "evaluation_batches")
            self._meets = 0 < counts.min() == counts.max()
            self._evaluation = Evaluation(self._feed, self._spec, eval_spec.group_by)
            self.metric_names = self._evaluation.metric_names  # Of the metrics that `evaluate` returns.
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

    def evaluate(self, session: tf1.Session) -> dict[str, Any] | None:
        """Returns the metrics over all ranks; None if a signal stops the training. A collective.

        Raises ServiceLost: the embedding service is lost.
        """
        self._training.dense.settle(session)
        values = distributed.broadcast_arrays(session.run(self._sources), "evaluated_variables")
        self._values.update(zip(self._fed, values, strict=True))
        self._training.feed.flush()
        distributed.barrier("evaluation_rows_flushed")
        self._evaluation.reset()
        self._feed.new_keys.in_training = self._training.feed.new_keys.in_training
        hooks = [*self._hooks, ProgressHook("evaluating", self._steps)]
        steps, stopped = self._eval_spec.steps or None, False
        all_sum = functools.partial(distributed.all_sum, name="what_ranks_ask_evaluations_for")
        meetings = Meetings(distributed.rank(), distributed.size(), all_sum)
        config = distributed.session_config(self._config.threads, given=self._config.session_config)
        creator = tf1.train.ChiefSessionCreator(self._scaffold, config=config)
        try:
            self._feed.rewind()
            with self._graph.as_default(), tf1.train.MonitoredSession(creator, hooks) as inner:
                while not (stopped or inner.should_stop() or self._evaluation.steps == steps):
                    self._evaluation.step(inner)
                    done, asked = self._evaluation.steps, self._stop.asked
                    stopped = bool(meetings.after_step(done, asked, is_over=False).signal if self._meets else asked)
                    # To the watchdog, the evaluation is part of a training step.
                    distributed.watchdog().progress()
        finally:
            self._feed.close()
        if distributed.all_sum(np.array(self._stop.asked > 0, np.int32), "evaluation_stopped"):
            return None
        return self._evaluation.results()

    def close(self) -> None:
        """Stops the threads that read the data."""
        self._feed.close()
