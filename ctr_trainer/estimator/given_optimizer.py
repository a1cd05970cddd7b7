"""The training operation of an optimizer that a `model_fn` gives; a `train_op` that does not exchange is refused."""

import dataclasses
import logging
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.equal_variables import lone_updates, summed_over_examples
from ctr_trainer.estimator.feed import GraphInput
from ctr_trainer.estimator.optimize import next_step
from ctr_trainer.estimator.padding import example_count
from ctr_trainer.estimator.step_gradients import step_gradients
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.graph_notes.notes import FOREIGN_STEP, RowTraining, StepPlan, notes
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
# In the names of the variables that Horovod 0.28.1 adds gradients up in.
_AGGREGATION = "aggregation_variables"
_NAMED = 5
_LINE = (
    "train_op = tf_estimator.DistributedOptimizer(optimizer).minimize(loss, global_step), with "
    "`from ctr_trainer import estimator as tf_estimator`"
)


def with_train_op(spec: EstimatorSpec, inputs: GraphInput, row_learning_rate: float) -> EstimatorSpec:
    """Returns the `EstimatorSpec` of a training, with the `train_op` of its optimizer where it gives one.

    With g_r the gradient of the loss on worker r, a mean over its W_r examples, the optimizer applies

        sum_r W_r g_r / sum_r W_r

    by `hvd.DistributedOptimizer` or `HostSumOptimizer`, so K workers step as one does on all their examples.

    Args:
      spec: `EstimatorSpec` of the `model_fn` in training.
      inputs: the `GraphInput`. The examples of a `tf.data` batch weigh 1 each.
      row_learning_rate: learning rate of the embedding rows, a number.

    Raises:
      UserError: the optimizer is none of TensorFlow 1, or distributed already; or on several workers the `train_op`
        updates a trainable variable by gradients that are not exchanged, or Horovod adds up gradients of several steps.
    """
    if distributed.size() > 1 and notes().step_plan is FOREIGN_STEP:
        _warn_of_sum(spec.loss)
    if spec.optimizer is None:
        if distributed.size() > 1 and notes().step_plan is FOREIGN_STEP and tf1.trainable_variables():
            _refuse_aggregation(spec.train_op)
            _refuse_lone(spec.train_op)
        return spec
    optimizer = spec.optimizer
    if not isinstance(optimizer, tf1.train.Optimizer):
        raise UserError(
            f"EstimatorSpec(optimizer=...) is of {type(optimizer).__module__}.{type(optimizer).__name__}: give one of "
            "tf.compat.v1.train, as tf.compat.v1.train.AdagradOptimizer(learning_rate)"
        )
    if type(optimizer).__module__.startswith("horovod"):
        raise UserError(
            "EstimatorSpec(optimizer=...) is distributed already: give the optimizer that is within it, which the "
            "Estimator wraps, or train_op=optimizer.minimize(loss, global_step)"
        )
    fed: Any = inputs.features if inputs.fed else None
    several = distributed.size() > 1
    weight = tf.reduce_sum(fed["weight"]) if inputs.fed else _examples(inputs)
    rows = fed.placeholders if inputs.fed else ()
    gradients = step_gradients(optimizer, spec.loss, weight, rows, exchange=several, sparse=True)
    notes().weighs_batches = True
    if inputs.fed:
        share = tf.math.divide_no_nan(float(distributed.size()), gradients.weight) if several else None
        notes().row_training = RowTraining(gradients.rows, tf.constant(row_learning_rate), share=share)
    updates = [gradients.optimizer.apply_gradients(gradients.pairs)] if gradients.pairs else []
    notes().step_plan = StepPlan(exchange=gradients.exchange)
    train_op = next_step([*updates, *gradients.statistics()])
    return dataclasses.replace(spec, mode=ModeKeys.TRAIN, train_op=train_op, optimizer=None)


def _examples(inputs: GraphInput) -> tf.Tensor:
    """Returns the weight of a batch of a `tf.data.Dataset`, a scalar float32."""
    padded = notes().batch_weight
    if padded is not None:
        return padded.own
    return tf.cast(example_count(inputs.features, inputs.labels), tf.float32)


def _warn_of_sum(loss: tf.Tensor) -> None:
    """Says so if a loss seems to be a sum over the examples: the mean of the workers' gradients is then too small."""
    name = summed_over_examples(loss)
    if name and distributed.is_chief():
        workers = distributed.size()
        _log.warning(
            "the loss of the model_fn seems to be a sum over the examples of a batch (%s): the workers' gradients are "
            "averaged, so %d workers would train at 1/%d of the gradient that one worker has for all their examples. "
            "Make the loss a mean, tf.reduce_mean, or multiply it by the number of workers, tf_estimator.size()",
            *(name, workers, workers),
        )


def _refuse_lone(train_op: tf.Operation | tf.Tensor) -> None:
    """Raises UserError if the workers' copies of a trainable variable would drift apart; names the variables."""
    variables = tf1.trainable_variables()
    lone = [variable.op.name for variable in lone_updates(train_op, variables)]
    if lone:
        named = ", ".join(lone[:_NAMED]) + (f" and {len(lone) - _NAMED} more" if len(lone) > _NAMED else "")
        raise UserError(
            f"the train_op {train_op.name!r} of the model_fn updates {len(lone)} of {len(variables)} trainable "
            f"variables by gradients that the {distributed.size()} workers do not exchange, so each worker would train "
            f"its own: {named}. Wrap the optimizer of these variables: {_LINE}. Or give the one optimizer of all "
            "variables in place of the train_op: EstimatorSpec(mode, loss=loss, optimizer=optimizer)"
        )


def _refuse_aggregation(train_op: tf.Operation | tf.Tensor) -> None:
    if _aggregates(train_op.graph):
        raise UserError(
            f"the train_op {train_op.name!r} of the model_fn exchanges gradients within a condition, as "
            "hvd.DistributedOptimizer does with backward_passes_per_step: its ranks can wait for each other for ever. "
            "Leave backward_passes_per_step out, and give accumulation_steps to a model whose optimizer is a TrainOp"
        )


def _aggregates(graph: tf.Graph) -> bool:
    """Returns whether Horovod adds up the gradients of several steps, which it then exchanges within a condition."""
    return any(_AGGREGATION in operation.name for operation in graph.get_operations())
