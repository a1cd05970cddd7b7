"""A training job, and its graph: calls `input_fn` and `model_fn`, and adds the operations of an optimizer step."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.checkpoint.model_record import ModelRecord
from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.estimator.built_step import BuiltStep, optimizer_step
from ctr_trainer.estimator.inputs import GraphInput, padded_input
from ctr_trainer.estimator.observation import InputEnds
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.estimator.run_length import Epochs, RunLength, resumed
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.layers.normalization import batch_statistics
from ctr_trainer.ranks import dense_exchange as exchanges
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.files.paths import PathLease
from ctr_trainer.system.files.staging import Staging
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
# Part of the names of the variables in which Horovod 0.28.1 accumulates gradients.
_AGGREGATION = "aggregation_variables"
# Operations whose result is a sum over the examples if one of their inputs is such a sum.
_KEEP_SUMS = ("Add", "AddV2", "AddN", "Sub", "Neg", "Mul", "Identity", "Cast", "Reshape", "Squeeze", "ExpandDims")


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """The model to train, its input, and the point from which the training starts.

    Attributes:
      record: compared with the record in `checkpoint`, and written to each new checkpoint.
      checkpoint: the `Checkpoint` to resume from; None for a training that starts from step 0.
      newer_checkpoints: prefix of the names to which checkpoints after `checkpoint`, no longer used, are renamed.
      data_begin: the global step at which the training on this data began; `start` if it begins with other data.
      last_step: the global step to stop at; None to stop at the end of the input.
      warm_start: the model to start from if there is no checkpoint, see `warm_start_of`.
      stops_early: whether evaluations may end it before `last_step` and the end of the input.
      staging: the local copy of the model directory.
      lock: the lock of the model directory, on rank 0; None on other ranks.
    """

    model_fn: Callable[..., EstimatorSpec]
    params: Any
    config: RunConfig
    model_dir: str
    input_fn: Callable[..., Any]
    record: ModelRecord
    staging: Staging
    lock: PathLease | None
    checkpoint: Checkpoint | None = None
    newer_checkpoints: Literal["refused", "set-aside"] = "refused"
    data_begin: int = 0
    last_step: int | None = None
    stops_early: bool = False
    warm_start: Any = None
    services: LocalServices | None = None

    @property
    def start(self) -> int:
        """The global step at which the training starts."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def position(self) -> dict[str, Any] | None:
        """Where the input resumes; None for its beginning."""
        return self.checkpoint.position if self.checkpoint and self.start > self.data_begin else None


@dataclasses.dataclass(frozen=True)
class BuiltModel:
    """A model whose graph is built for training; `spec` is the result of its `model_fn`."""

    inputs: GraphInput
    spec: EstimatorSpec
    step: BuiltStep


def build_model(job: TrainingJob, input_ends: InputEnds) -> BuiltModel:
    """Calls `input_fn` and `model_fn` in the current graph, and adds the optimizer step. A collective.

    Raises UserError: the input or the `train_op` cannot be used, see `build_step`.
    """
    config, several = job.config, distributed.size() > 1
    data = call_input_fn(job.input_fn, ModeKeys.TRAIN, job.params, config, job.position)
    pads = config.uneven_inputs == "pad" and several
    inputs = padded_input(data) if pads else make_input(data, job.model_dir)
    if several and not inputs.fed:
        inputs.count_reads(input_ends.has_read)
    own = inputs.in_epochs and dataclasses.asdict(inputs.in_epochs)
    batches, epochs = distributed.broadcast_object((inputs.batches, own), "batches")
    length = resumed(job.checkpoint, batches, job.last_step, epochs and Epochs(**epochs), job.data_begin)
    spec = job.model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, job.params)
    scales_loss = config.mixed_precision == "float16"
    step = build_step(spec, inputs, config.embedding, length, config.dense_exchange, scales_loss)
    if pads:
        refuse_unweighed(step)
    return BuiltModel(inputs, spec, step)


def build_step(
    spec: EstimatorSpec,
    inputs: GraphInput,
    rows: EmbeddingConfig,
    length: RunLength,
    dense_exchange: str = "auto",
    scales_loss: bool = False,
) -> BuiltStep:
    """Adds the operations of an optimizer step to the graph of an `EstimatorSpec`.

    The spec has the `train_op` of a `TrainOp`, or an `optimizer`, or a `train_op` of its own. Let g_r be the gradient
    of the loss on worker r, a mean over its W_r examples. An `optimizer` applies

        sum_r W_r g_r / sum_r W_r

    through `hvd.DistributedOptimizer` or `HostSum`, so K workers make the step of one worker with all their
    examples. Each example of a `tf.data` batch has the weight 1.

    Args:
      rows: has the learning rate of the rows, unless a `TrainOp` has it.
      length, dense_exchange, scales_loss: see `TrainOp.build`.

    Raises UserError: the optimizer is not a TensorFlow 1 optimizer, or is already distributed. Or, with several
    workers, Horovod accumulates the gradients of the program's own `train_op` over several steps.
    """
    if callable(spec.train_op):  # Of a `TrainOp`.
        return spec.train_op(rows, length, dense_exchange, scales_loss)
    if distributed.is_chief() and distributed.size() > 1 and (name := summed_over_examples(spec.loss)):
        workers = distributed.size()
        _log.warning(
            "the loss of the model_fn seems to be a sum over the examples of a batch (%s): the workers' gradients are "
            "averaged, so %d workers would train at 1/%d of the gradient that one worker has for all their examples. "
            "Make the loss a mean, tf.reduce_mean, or multiply it by the number of workers, tf_estimator.size()",
            *(name, workers, workers),
        )
    optimizer, rate = spec.optimizer, tf.convert_to_tensor(rows.learning_rate)
    if optimizer is None:
        # Horovod then exchanges the gradients of several steps within a conditional.
        if distributed.size() > 1 and any(_AGGREGATION in each.name for each in spec.train_op.graph.get_operations()):
            raise UserError(
                f"the train_op {spec.train_op.name!r} of the model_fn exchanges gradients within a condition, as "
                "hvd.DistributedOptimizer does with backward_passes_per_step: its ranks can wait for each other for "
                "ever. Leave backward_passes_per_step out, and give accumulation_steps to a model whose optimizer is a "
                "TrainOp"
            )
        fed: Any = inputs.placeholders
        gradients = zip(fed, tf.gradients(spec.loss, fed) if fed else [], strict=True)
        by_name = {row.name: gradient for row, gradient in gradients if gradient is not None}
        updates = [each.update(each.value, inputs.weight, length.steps_per_epoch) for each in batch_statistics()]
        return BuiltStep(tf.group(spec.train_op, *updates), length, by_name, rate)
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
    return optimizer_step(
        optimizer,
        spec.loss,
        inputs.weight,
        inputs.placeholders,
        rate,
        run_length=length,
        exchange=exchanges.exchange(dense_exchange),
        sparse=True,
        scales_loss=scales_loss,
    )


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


def summed_over_examples(loss: tf.Tensor) -> str:
    """Returns the name of the operation that sums a loss over the examples of a batch; "" if none is found.

    Traces the additions and products of the loss backwards to the first mean, division or sum. Only a sum over a first
    dimension that the graph does not know, as that of a batch, counts.
    """
    queue, seen = [loss.op], set()
    while queue:
        op = queue.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "Sum" and op.inputs[0].shape.rank and op.inputs[0].shape.as_list()[0] is None:
            axes = tf.get_static_value(op.inputs[1])
            if axes is not None and 0 in axes.reshape(-1) % op.inputs[0].shape.rank:
                return op.name
        if op.type in _KEEP_SUMS:
            queue += [tensor.op for tensor in op.inputs]
    return ""
