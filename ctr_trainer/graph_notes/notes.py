"""The notes on a graph, which pass information between the code that builds it and the code that runs it.

A `model_fn` takes features and returns an `EstimatorSpec`, as in `tf.estimator`. Each graph has one `GraphNotes` for
the other facts that the training loop needs about the graph, and that the `model_fn` needs about the run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.graph_notes.run_length import RunLength
from ctr_trainer.system.messages.errors import UserError

_MICRO_BATCH = "micro_batch"
_KEY = ("ctr_trainer", "notes")  # Not a string: TensorFlow would try to serialize the value of a string key.


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The runs of an optimizer step: `accumulate` on the first `accumulation_steps` - 1 batches, then `train_op`.

    Attributes:
      accumulate: operation that adds the gradients of a micro-batch to the sum; None if a step has one batch.
      accumulation_steps: micro-batches per optimizer step.
      begin: operation that keeps the gradients of a step; None if each step applies its own gradients. It replaces
        `train_op` in the first step, and in the first step after each `drain`. In all other steps, `train_op` applies
        the gradients of the previous step.
      drain: operation that applies the most recently kept gradients; None if each step applies its own gradients.
      dense_sync_steps: optimizer steps after which the workers average their dense variables; 1 if they exchange the
        gradients of each step instead, so that the variables are always equal.
      exchange: the log line that says how the workers exchange gradients, and why.
      fp16: whether they exchange float16.
    """

    accumulate: tf.Operation | None = None
    accumulation_steps: int = 1
    begin: tf.Operation | None = None
    drain: tf.Operation | None = None
    dense_sync_steps: int = 1
    exchange: str = "gradient exchange: by the train_op of the model_fn, because it was not made by this package"
    fp16: bool = False

    @property
    def steps_wait(self) -> bool:
        """Whether the workers wait for each other at each optimizer step."""
        return self.dense_sync_steps == 1


FOREIGN_STEP = StepPlan()  # For a `train_op` that this package did not make: one batch per step.


@dataclasses.dataclass(frozen=True)
class RowTraining:
    """The tensors that a session fetches to train the rows of a batch, see `worker_rows.weighed`.

    Attributes:
      gradients: dict of placeholder name -> gradient of this worker's loss with respect to the rows that are fed there.
      learning_rate: scalar tensor.
      learning_rate_scale: factor that scales the learning rates of the job; None for the number of workers.
      share: scalar tensor, the batch's share of all examples in the step, divided by the sum of the batch's weights;
        None if the batch is the whole step.
    """

    gradients: dict[str, tf.Tensor]
    learning_rate: tf.Tensor
    learning_rate_scale: float | None = None
    share: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class BatchWeight:
    """The weight of this worker's batch, in examples. A batch that is only padding has the weight 0.

    Attributes:
      own: scalar float32, the weight of this worker's batch.
      total: scalar float32, the sum of the weights of all workers' batches in this step.
    """

    own: tf.Tensor
    total: tf.Tensor


@dataclasses.dataclass
class GraphNotes:
    """The facts about a training graph that its `EstimatorSpec` does not contain.

    Attributes:
      run_length: length of the run, on which learning-rate schedules depend; unknown by default.
      step_plan: the runs of an optimizer step; `FOREIGN_STEP` if this package did not make the `train_op`.
      row_training: how the embedding rows are trained; None to train them with the gradients of the loss.
      plateau: `schedules.Plateau`; None if learning rates do not depend on evaluations.
      negative_sampling: the share of the negative examples that the graph trains on; None if it does not set one.
      batch_weight: the weight of this worker's batch; None if the batches of all workers have equal weights.
      weighs_batches: whether an optimizer of the graph applies `batch_weight`.
      scales_loss: whether to scale the loss, because gradients are computed in float16.
    """

    run_length: RunLength = RunLength()
    step_plan: StepPlan = FOREIGN_STEP
    row_training: RowTraining | None = None
    plateau: Any = None
    negative_sampling: float | None = None
    batch_weight: BatchWeight | None = None
    weighs_batches: bool = False
    scales_loss: bool = False


def notes() -> GraphNotes:
    """Returns the notes on the current graph, created at the first call."""
    found = tf1.get_collection(_KEY)
    if found:
        return found[0]
    made = GraphNotes()
    tf1.add_to_collection(_KEY, made)
    return made


def params_as_trained(params: Any, checkpoint: Any) -> Any:
    """Returns the params of a model with the share of negative examples with which a checkpoint was trained.

    Args:
      params: `ModelParams`, whose `negative_sampling` is None if the user did not set it. Params of a class without
        this field are returned unchanged.
      checkpoint: `Checkpoint`; if it has no share, the params are returned unchanged.

    Raises:
      UserError: the params set a share that differs from the checkpoint's.
    """
    if checkpoint.negative_sampling is None or not hasattr(params, "negative_sampling"):
        return params
    if params.negative_sampling not in (None, checkpoint.negative_sampling):
        raise UserError(
            f"negative_sampling={params.negative_sampling:g}: {checkpoint.path} was trained with "
            f"negative_sampling={checkpoint.negative_sampling:g}, and its predictions are calibrated for that; leave "
            "the setting out"
        )
    return dataclasses.replace(params, negative_sampling=checkpoint.negative_sampling)


def params_of_this_graph(params: Any) -> Any:
    """Returns the params with the current graph's share of negative examples, as checkpoints store them."""
    share = notes().negative_sampling
    if share is None or not hasattr(params, "negative_sampling"):
        return params
    return dataclasses.replace(params, negative_sampling=share)


class WeighedOptimizer(tf1.train.Optimizer):
    """An optimizer that multiplies its gradients by the share of this worker's batch in the examples of the step.

        W_r / sum_s W_s * g_r

    g_r is the gradient of the loss averaged over worker r's W_r examples. The sum of these products over the workers r
    is the gradient of the loss averaged over all examples. If a batch is only padding, the product is 0 even if g_r is
    not finite, and a sparse gradient has no rows.

    Args:
      local: tensors whose gradients are not summed over the workers. These gradients are multiplied by `workers` as
        well, so that their mean over the workers is the sum above.
    """

    def __init__(
        self, inner: tf1.train.Optimizer, weight: BatchWeight, local: Sequence[tf.Tensor] = (), workers: int = 1
    ) -> None:
        super().__init__(use_locking=False, name=f"Weighed{inner.get_name()}")
        self._inner, self._weight = inner, weight
        self._local, self._workers = {id(tensor) for tensor in local}, workers

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        notes().weighs_batches = True
        return [
            (None if gradient is None else self._weighed(gradient, variable), variable)
            for gradient, variable in self._inner.compute_gradients(*args, **kwargs)
        ]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> tf.Operation:
        return self._inner.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> tf.Variable | None:
        return self._inner.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        return self._inner.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        return self._inner.variables()

    def _weighed(self, gradient: tf.Tensor | tf.IndexedSlices, variable: Any) -> tf.Tensor | tf.IndexedSlices:
        return share_of(gradient, self._weight, self._workers if id(variable) in self._local else 1)


def share_of(
    gradient: tf.Tensor | tf.IndexedSlices, weight: BatchWeight, times: int = 1
) -> tf.Tensor | tf.IndexedSlices:
    """Computes W_r / sum_s W_s * times * gradient.

    If the batch is only padding, the result is 0 even if the gradient is not finite. `tf.IndexedSlices` then have no
    rows, because some optimizers update a row by its momentum even if its gradient is 0.
    """
    factor = tf.cast(tf.math.divide_no_nan(weight.own, weight.total) * times, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.where(weight.own > 0, tf.shape(gradient.indices)[0], 0)
        return tf.IndexedSlices(gradient.values[:rows] * factor, gradient.indices[:rows], gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, factor)


def micro_batch() -> tf.Tensor:
    """Returns the scalar int64 tensor that steps of several micro-batches feed with the number of each; else 0."""
    graph = tf1.get_default_graph()
    try:
        return graph.get_tensor_by_name(f"{_MICRO_BATCH}:0")
    except KeyError:
        with tf1.name_scope(None), tf.control_dependencies(None):
            return tf1.placeholder_with_default(tf.constant(0, tf.int64), [], _MICRO_BATCH)
