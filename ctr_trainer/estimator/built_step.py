"""The operations of an optimizer step: gradients averaged over micro-batches and workers, and their update."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.dense_optimizers import DenseUpdate, Plateau
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.layers.normalization import batch_statistics
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import Exchange, fused_means, mean_over_ranks


@dataclasses.dataclass(frozen=True)
class BuiltStep:
    """The runs of an optimizer step: `accumulate` on all its batches but the last, then `train_op`.

    Attributes:
      run_length: the length of the run in these steps, and the number of batches of a step.
      row_gradients: dict of placeholder name -> gradient of this worker's loss with respect to the rows that are fed
        there, see `worker_rows.weighed`.
      row_learning_rate: scalar tensor.
      learning_rate_scale: factor that scales the learning rates of the job; None for the number of workers.
      share: scalar tensor, the batch's share of all examples in the step, divided by the sum of the batch's weights;
        None if the batch is the whole step.
      accumulate: operation that adds the gradients of a micro-batch to the sum; None if a step has one batch.
      dense_sync_steps: optimizer steps after which the workers average their dense variables; 1 if they exchange the
        gradients of each step instead, so that the variables are always equal.
      exchange: how the workers exchange gradients or variables; None if the program's own `train_op` does.
      plateau: None if learning rates do not depend on evaluations.
    """

    train_op: tf.Operation
    run_length: RunLength
    row_gradients: dict[str, tf.Tensor]
    row_learning_rate: tf.Tensor
    learning_rate_scale: float | None = None
    share: tf.Tensor | None = None
    accumulate: tf.Operation | None = None
    dense_sync_steps: int = 1
    exchange: Exchange | None = None
    plateau: Plateau | None = None

    @property
    def steps_wait(self) -> bool:
        """Whether the workers wait for each other at each optimizer step."""
        return self.dense_sync_steps == 1

    @property
    def exchange_text(self) -> str:
        """The log line that says how the workers exchange gradients or variables, and why."""
        if self.exchange is None and distributed.size() > 1:
            return "gradient exchange: by the train_op of the model_fn, because it was not made by this package"
        if self.exchange is None:
            return str(Exchange("none", "there is one worker"))
        if self.steps_wait or distributed.size() == 1:
            return str(self.exchange)
        by = "through shared memory" if self.exchange.is_in_memory else "by hvd.allreduce"
        return (
            f"gradient exchange: none; every {self.dense_sync_steps} steps the workers average their dense variables "
            f"{by}, because dense_sync_steps={self.dense_sync_steps} was chosen"
        )


def optimizer_step(
    optimizer: tf1.train.Optimizer,
    loss: tf.Tensor,
    weight: tf.Tensor,
    rows: Sequence[tf.Tensor],
    row_learning_rate: tf.Tensor,
    *,
    run_length: RunLength,
    exchange: Exchange,
    learning_rate_scale: float | None = None,
    dense_sync_steps: int = 1,
    fp16: bool = False,
    sparse: bool = False,
    scales_loss: bool = False,
    plateau: Plateau | None = None,
) -> BuiltStep:
    """Adds the operations of an optimizer step to the graph of a loss, and returns them.

    Gradients are averaged over the micro-batches of the step and, unless `dense_sync_steps` is above 1, over the
    workers, weighted by the examples. A batch of padding has the weight 0. One backward pass serves the variables and
    the rows. Each batch also runs the `UPDATE_OPS` of the graph, such as those of moving statistics.

    Args:
      optimizer: a `tf.compat.v1.train.Optimizer`.
      loss: scalar, averaged over the examples of this worker's batch.
      weight: scalar float32, the sum of the weights of this batch's examples.
      rows: placeholders of embedding rows, whose gradients are not averaged.
      row_learning_rate, learning_rate_scale: see `BuiltStep`.
      run_length: determines the number of micro-batches, and how fast the batch statistics of layers forget.
      sparse: whether `tf.IndexedSlices` stay sparse. If any gradient is sparse, Horovod exchanges all gradients.
      scales_loss: whether to scale the loss, because gradients are computed in float16, whose smallest numbers are near
        6e-8. If a gradient is not finite, the sum over the workers is not finite either, so all workers skip the step
        and halve the scale. After 2,000 consecutive finite steps, the scale doubles.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2, as implemented by
    `tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer`.
    """
    unscaled = optimizer
    if scales_loss:
        optimizer = tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, "dynamic")
    pairs, of_rows = _gradients(optimizer, loss, rows, sparse, scales_loss)
    variables, statistics = [of for _, of in pairs], batch_statistics()
    tensors = [*(gradient for gradient, _ in pairs), *(each.value for each in statistics)]
    if distributed.size() > 1 and any(isinstance(each, tf.IndexedSlices) for each in tensors):
        exchange = Exchange("horovod", "a gradient is sparse (tf.IndexedSlices)")
    exchanges = dense_sync_steps == 1 and distributed.size() > 1
    accumulate: tf.Operation | None = None
    after = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)  # Of the model_fn, which run with each batch.
    if run_length.accumulation_steps > 1:
        tensors, weight, accumulate, cleared = _over_micro_batches(tensors, weight)
        accumulate, after = tf.group(accumulate, *after), [*after, *cleared]
    share = None
    if exchanges:
        tensors, weight = mean_over_ranks(tensors, weight, exchange, fp16)
        share = tf.math.divide_no_nan(float(distributed.size()), weight)
    elif run_length.accumulation_steps > 1:
        share = tf.math.reciprocal_no_nan(weight)
    gradients, means = tensors[: len(variables)], tensors[len(variables) :]
    if isinstance(unscaled, DenseUpdate):
        unscaled.weight = weight
    updates = [optimizer.apply_gradients([*zip(gradients, variables, strict=True)])] if variables else []
    for statistic, mean in zip(statistics, means, strict=True):
        updates.append(statistic.update(mean, weight, run_length.steps_per_epoch))
    with tf.control_dependencies([*updates, *after]):  # These may read the old value of the global step.
        train_op = tf1.train.get_or_create_global_step().assign_add(1, read_value=False)
    return BuiltStep(
        train_op=train_op,
        run_length=run_length,
        row_gradients=of_rows,
        row_learning_rate=row_learning_rate,
        learning_rate_scale=learning_rate_scale,
        share=share,
        accumulate=accumulate,
        dense_sync_steps=dense_sync_steps,
        exchange=exchange,
        plateau=plateau,
    )


def _gradients(
    optimizer: tf1.train.Optimizer, loss: tf.Tensor, rows: Sequence[tf.Tensor], sparse: bool, scales_loss: bool
) -> tuple[list[tuple[tf.Tensor, tf.Variable]], dict[str, tf.Tensor]]:
    """Returns the pairs of the variables on which the loss depends, and a dict of placeholder name -> row gradient."""
    variables, names = tf1.trainable_variables(), {row.name for row in rows}
    pairs = []
    if variables or rows:  # One backward pass for both.
        gate = tf1.train.Optimizer.GATE_NONE
        pairs = optimizer.compute_gradients(loss, var_list=[*variables, *rows], gate_gradients=gate)
    pairs = [(gradient, of) for gradient, of in pairs if gradient is not None]
    of_rows = {of.name: gradient for gradient, of in pairs if of.name in names}
    if scales_loss and of_rows:  # Zeros if a gradient is not finite, because the loss is scaled.
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in of_rows.values()])
        factor = tf.cast(finite, tf.float32)
        of_rows = {name: tf.math.multiply_no_nan(gradient, factor) for name, gradient in of_rows.items()}
    dense = [(g if sparse else tf.convert_to_tensor(g), of) for g, of in pairs if of.name not in names]
    return dense, of_rows


def _over_micro_batches(
    tensors: list[tf.Tensor], weight: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Operation, list[tf.Operation]]:
    """Returns the means over a step, their weight, the addition of a micro-batch, and what clears the sums after it."""
    added, after = [], []

    def add_up(vector: tf.Tensor, dtype: str) -> tf.Tensor:
        total = _local_zeros(vector)
        added.append(total.assign_add(vector, read_value=False))
        with tf.control_dependencies(added[-1:]):
            read = total.read_value()
        with tf.control_dependencies([read]):
            after.append(total.assign(tf.zeros_like(vector), read_value=False))
        return read

    with tf.name_scope("dense_exchange"):
        means, weight = fused_means(tensors, weight, add_up)
    return means, weight, tf.group(*added), after


def _local_zeros(like: tf.Tensor) -> tf.Variable:
    """Creates a variable, initially 0, that belongs to this rank only and is not part of checkpoints."""
    return tf1.get_variable(
        f"accumulated/{like.dtype.name}",
        like.shape,
        like.dtype,
        tf1.zeros_initializer(),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES],
    )
