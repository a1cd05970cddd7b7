"""Builds the graph of a training: calls `input_fn` and `model_fn`, and adds the operations of an optimizer step."""

import dataclasses
import logging
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator import run_length
from ctr_trainer.estimator.built_step import BuiltStep, RowTraining, RunFacts
from ctr_trainer.estimator.equal_variables import lone_updates, summed_over_examples
from ctr_trainer.estimator.feed import GraphInput
from ctr_trainer.estimator.inputs import PaddedInput
from ctr_trainer.estimator.job import TrainingJob
from ctr_trainer.estimator.observation import InputEnds
from ctr_trainer.estimator.optimize import PlannedStep, next_step
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.estimator.step_gradients import step_gradients
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.ranks import dense_exchange, distributed
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
# Part of the names of the variables in which Horovod 0.28.1 accumulates gradients.
_AGGREGATION = "aggregation_variables"
_NAMED = 5
_LINE = (
    "train_op = tf_estimator.DistributedOptimizer(optimizer).minimize(loss, global_step), with "
    "`from ctr_trainer import estimator as tf_estimator`"
)


@dataclasses.dataclass(frozen=True)
class BuiltModel:
    """A model whose graph is built for training.

    Attributes:
      inputs: the features and labels of the graph.
      spec: the result of the `model_fn`.
      step: the operations of an optimizer step.
    """

    inputs: GraphInput
    spec: EstimatorSpec
    step: BuiltStep


def build_model(job: TrainingJob, input_ends: InputEnds) -> BuiltModel:
    """Calls `input_fn` and `model_fn` in the current graph, and adds the optimizer step. A collective.

    Raises:
      UserError: the input or the `train_op` cannot be used, see `build_step`.
    """
    config, several = job.config, distributed.size() > 1
    position = job.checkpoint.position if job.checkpoint else None
    data = call_input_fn(job.input_fn, ModeKeys.TRAIN, job.params, config, position)
    pads = config.uneven_inputs == "pad" and several
    has_read = input_ends.has_read if several else None
    inputs = PaddedInput(data, has_read) if pads else make_input(data, job.model_dir, has_read=has_read)
    own = inputs.in_epochs and dataclasses.asdict(inputs.in_epochs)
    batches, epochs = distributed.broadcast_object((inputs.batches, own), "batches")
    epochs = epochs and run_length.Epochs(**epochs)
    length = run_length.resumed(job.checkpoint, batches, job.last_step, epochs)
    spec = job.model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, job.params)
    run = RunFacts(length, config.dense_exchange, scales_loss=config.mixed_precision == "float16")
    step = build_step(spec, inputs, run, config.embedding.learning_rate)
    if pads:
        refuse_unweighed(step)
    return BuiltModel(inputs, spec, step)


def build_step(spec: EstimatorSpec, inputs: GraphInput, run: RunFacts, row_learning_rate: float) -> BuiltStep:
    """Adds the operations of an optimizer step to the graph of an `EstimatorSpec`.

    The spec has the `train_op` of a `TrainOp`, or an `optimizer`, or a `train_op` of its own. Let g_r be the gradient
    of the loss on worker r, a mean over its W_r examples. An `optimizer` applies

        sum_r W_r g_r / sum_r W_r

    through `hvd.DistributedOptimizer` or `HostSumOptimizer`, so K workers make the step of one worker with all their
    examples. Each example of a `tf.data` batch has the weight 1.

    Raises:
      UserError: the optimizer is not a TensorFlow 1 optimizer, or is already distributed. Or, with several workers, the
        program's own `train_op` updates a trainable variable by gradients that are not exchanged, or Horovod
        accumulates gradients over several steps.
    """
    if isinstance(spec.train_op, PlannedStep):
        return spec.train_op.build(run)
    if distributed.size() > 1:
        _warn_of_sum(spec.loss)
    if spec.optimizer is not None:
        return _step_of_optimizer(spec, inputs, run, row_learning_rate)
    if distributed.size() > 1 and tf1.trainable_variables():
        _refuse_aggregation(spec.train_op)
        _refuse_lone(spec.train_op)
    rows = _rows_of_loss(spec.loss, inputs, row_learning_rate)
    return BuiltStep(getattr(spec.train_op, "op", spec.train_op), run.length, rows)


def _step_of_optimizer(spec: EstimatorSpec, inputs: GraphInput, run: RunFacts, row_learning_rate: float) -> BuiltStep:
    """Adds the operations of a step by the optimizer of a program."""
    optimizer, several = spec.optimizer, distributed.size() > 1
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
    exchange = dense_exchange.exchange(run.dense_exchange)
    gradients = step_gradients(
        optimizer,
        spec.loss,
        inputs.weight,
        inputs.placeholders,
        run_length=run.length,
        exchange=exchange if several else None,
        sparse=True,
        scales_loss=run.scales_loss,
    )
    rows = None
    if inputs.fed:
        share = tf.math.divide_no_nan(float(distributed.size()), gradients.weight) if several else None
        rows = RowTraining(gradients.rows, tf.constant(row_learning_rate), share=share)
    exchange = gradients.exchange or exchange
    train_op = next_step(gradients.update())
    return BuiltStep(train_op, run.length, rows, exchange=exchange, exchange_text=str(exchange))


def _rows_of_loss(loss: tf.Tensor, inputs: GraphInput, learning_rate: float) -> RowTraining | None:
    """Returns the `RowTraining` from the gradients of a loss, for a `train_op` that this package did not make."""
    if not inputs.fed:
        return None
    rows: Any = inputs.placeholders
    gradients = tf.gradients(loss, rows) if rows else []
    by_name = {row.name: g for row, g in zip(rows, gradients, strict=True) if g is not None}
    return RowTraining(by_name, tf.convert_to_tensor(learning_rate))


def refuse_unweighed(step: BuiltStep) -> None:
    """Raises UserError if the current graph would train on zero-weight batches."""
    if step.exchange is None:
        raise UserError(
            "uneven_inputs='pad': the train_op of the model_fn does not weigh the batches, so it would train on the "
            "zero-weight batches too: return EstimatorSpec(mode, loss=loss, optimizer=...), or use "
            "uneven_inputs='error'"
        )
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    if updates:
        raise UserError(
            f"uneven_inputs='pad': {updates[0].name} of the model_fn updates moving statistics by each batch, "
            "zero-weight batches included: leave batch normalization out, or use uneven_inputs='error'"
        )


def _warn_of_sum(loss: tf.Tensor) -> None:
    """Logs a warning if a loss seems to be a sum over the examples. Averaged worker gradients are then too small."""
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
    """Raises UserError if the workers' copies of a trainable variable would diverge. The message names up to five."""
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
    """Raises UserError if Horovod accumulates gradients over several steps: it exchanges them within a conditional."""
    if any(_AGGREGATION in operation.name for operation in train_op.graph.get_operations()):
        raise UserError(
            f"the train_op {train_op.name!r} of the model_fn exchanges gradients within a condition, as "
            "hvd.DistributedOptimizer does with backward_passes_per_step: its ranks can wait for each other for ever. "
            "Leave backward_passes_per_step out, and give accumulation_steps to a model whose optimizer is a TrainOp"
        )
