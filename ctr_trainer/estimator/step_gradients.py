"""The gradients of an optimizer step: averaged over micro-batches and workers, or kept by the previous step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.layers.normalization import batch_statistics
from ctr_trainer.ranks.dense_exchange import Exchange
from ctr_trainer.ranks.mean_optimizer import Fused, MeanOptimizer, mean_over_ranks


@dataclasses.dataclass(frozen=True)
class StepGradients:
    """The result of `step_gradients`.

    Attributes:
      update: f() -> the operations that update the dense variables on which the loss depends, and the batch statistics
        of layers.
      rows: dict of placeholder name -> gradient of the embedding rows from this worker's batch.
      weight: scalar float32, the sum of the weights of the examples over which the gradients are averaged.
      own_weight: scalar float32, the part of `weight` that belongs to this worker's examples in this step.
      accumulate: operation that only adds the gradients of a micro-batch; None if a step has one batch.
      kept: with `overlap`, operations that keep this step's gradients for the next step; otherwise [].
      after: operations that have to run at the end of a step.
      exchange: how the workers exchange gradients; None if they do not.
    """

    update: Callable[[], list[tf.Operation]]
    rows: dict[str, tf.Tensor]
    weight: tf.Tensor
    own_weight: tf.Tensor
    accumulate: tf.Operation | None = None
    kept: list[tf.Operation] = dataclasses.field(default_factory=list)
    after: list[tf.Operation] = dataclasses.field(default_factory=list)
    exchange: Exchange | None = None


def step_gradients(
    optimizer: tf1.train.Optimizer,
    loss: tf.Tensor,
    weight: tf.Tensor,
    rows: Sequence[tf.Tensor] = (),
    *,
    run_length: RunLength,
    exchange: Exchange | None,
    accumulation_steps: int = 1,
    overlap: bool = False,
    fp16: bool = False,
    sparse: bool = False,
    scales_loss: bool = False,
) -> StepGradients:
    """Returns the `StepGradients` of a loss, averaged over all examples of an optimizer step.

    Gradients are averaged over the micro-batches of the step and over the workers, weighted by the examples. A batch of
    padding has the weight 0.

    Staleness: with `overlap`, the result has the gradients that the previous step kept. Their reduction waits for
    nothing in this step, so it runs concurrently with the forward and backward pass.

    Args:
      loss: scalar, averaged over the examples of this worker's batch.
      weight: scalar float32, the sum of the weights of this batch's examples.
      rows: placeholders of embedding rows, whose gradients are not averaged.
      run_length: determines how fast the batch statistics of layers forget.
      exchange: how to average over all ranks; None to average over this rank's micro-batches only.
      accumulation_steps: micro-batches per step.
      overlap: see above; requires an exchange by Horovod.
      fp16: whether Horovod sends float16; the sum is then in float16 as well.
      sparse: whether `tf.IndexedSlices` stay sparse. If any gradient is sparse, Horovod exchanges all gradients.
      scales_loss: whether to scale the loss, because gradients are computed in float16; see `with_loss_scaling`.
    """
    batch = _BatchGradients(
        with_loss_scaling(optimizer) if scales_loss else optimizer, weight, loss, rows, sparse, scales_loss
    )
    outer: MeanOptimizer = batch
    micro_batches: _MicroBatches | None = None
    step_before: _StepBefore | None = None
    if accumulation_steps > 1:
        outer = micro_batches = _MicroBatches(outer)
    own = outer
    if overlap:
        outer = step_before = _StepBefore(outer)
    if exchange is not None and batch.is_sparse:
        exchange = Exchange("horovod", "a gradient is sparse (tf.IndexedSlices)")
    if exchange is not None:
        outer = mean_over_ranks(outer, exchange, fp16)
    pairs = outer.compute_gradients()
    dense = len(pairs) - len(batch.statistics)
    means = [mean for mean, _ in pairs[dense:]]

    def update() -> list[tf.Operation]:
        stepped = [outer.apply_gradients(pairs[:dense])] if dense else []
        epochs = run_length.steps_of_epochs()
        steps = epochs.steps if epochs else None
        return stepped + [
            each.update(mean, outer.weight, steps) for each, mean in zip(batch.statistics, means, strict=True)
        ]

    return StepGradients(
        update=update,
        rows=batch.rows,
        weight=outer.weight,
        own_weight=own.weight,
        accumulate=micro_batches.accumulate if micro_batches else None,
        kept=step_before.kept if step_before else [],
        after=micro_batches.after if micro_batches else [],
        exchange=exchange,
    )


class _BatchGradients(MeanOptimizer):
    """Computes the gradients of one batch of this worker, followed by the batch statistics of its layers.

    Attributes:
      rows: dict of placeholder name -> gradient of the embedding rows.
      statistics: the `BatchStatistic`s to which the last pairs belong.
      is_sparse: whether a gradient is a `tf.IndexedSlices`.
    """

    def __init__(
        self,
        optimizer: tf1.train.Optimizer,
        weight: tf.Tensor,
        loss: tf.Tensor,
        rows: Sequence[tf.Tensor],
        sparse: bool,
        scales_loss: bool,
    ) -> None:
        super().__init__(optimizer)
        self.weight, self.statistics = weight, batch_statistics()
        variables, names = tf1.trainable_variables(), {row.name for row in rows}
        pairs = []
        if variables or rows:  # One backward pass for both.
            gate = tf1.train.Optimizer.GATE_NONE
            pairs = optimizer.compute_gradients(loss, var_list=[*variables, *rows], gate_gradients=gate)
        pairs = [(gradient, of) for gradient, of in pairs if gradient is not None]
        self.rows = {of.name: gradient for gradient, of in pairs if of.name in names}
        if scales_loss and self.rows:
            self.rows = without_overflow(self.rows)
        self._pairs = [(gradient, of) for gradient, of in pairs if of.name not in names]
        if not sparse:
            self._pairs = [(tf.convert_to_tensor(gradient), of) for gradient, of in self._pairs]
        self.is_sparse = any(isinstance(gradient, tf.IndexedSlices) for gradient, _ in self._pairs)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor, Any]]:
        """Returns the pairs of the trainable variables on which the loss depends, then the pairs of the statistics."""
        return self._pairs + [(each.value, each.value) for each in self.statistics]


class _MicroBatches(MeanOptimizer):
    """Averages over the micro-batches of a step.

    Attributes:
      accumulate: operation that only adds the gradients of a micro-batch.
      after: operations that clear the sums at the end of the step.
    """

    def _mean(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.name_scope("dense_exchange"):
            fused, sums, added, self.after = Fused(tensors), {}, [], []
            for dtype, vector in fused.vectors(weight).items():
                total = _local_zeros("accumulated", vector)
                added.append(total.assign_add(vector, read_value=False))
                with tf.control_dependencies(added[-1:]):
                    sums[dtype] = total.read_value()
                with tf.control_dependencies([sums[dtype]]):
                    self.after.append(total.assign(tf.zeros_like(vector), read_value=False))
            self.accumulate = tf.group(*added)
            return fused.means(sums)


class _StepBefore(MeanOptimizer):
    """Returns the gradients that the previous step kept, and keeps the gradients of this step.

    Attributes:
      kept: operations that keep the gradients of this step.
    """

    def _mean(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.name_scope("dense_exchange"):
            fused, before, self.kept = Fused(tensors), {}, []
            for dtype, vector in fused.vectors(weight).items():
                variable = _local_zeros("kept", vector)
                before[dtype] = variable.read_value()
                with tf.control_dependencies([before[dtype]]):
                    self.kept.append(variable.assign(vector, read_value=False))
            return fused.means(before)


def _local_zeros(name: str, like: tf.Tensor) -> tf.Variable:
    """Creates a variable, initially 0, that belongs to this rank only and is not part of checkpoints."""
    return tf1.get_variable(
        f"{name}/{like.dtype.name}",
        like.shape,
        like.dtype,
        tf1.zeros_initializer(),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES],
    )


def with_loss_scaling(optimizer: tf1.train.Optimizer) -> tf1.train.Optimizer:
    """Returns the optimizer with loss scaling, for gradients that are computed in float16.

    The smallest numbers of float16 are near 6e-8, and smaller gradients vanish. Therefore the loss is multiplied by a
    scale, and the gradients are divided by it. If a gradient is not finite, the sum over the workers is not finite
    either, so all workers skip the step and halve the scale. After 2,000 consecutive finite steps, the scale doubles.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2, as implemented by
    `tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer`.
    """
    return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, "dynamic")


def without_overflow(gradients: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the gradients of a batch's rows; zeros if one of them is not finite, because the loss is scaled."""
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients.values()])
    factor = tf.cast(finite, tf.float32)
    return {name: tf.math.multiply_no_nan(gradient, factor) for name, gradient in gradients.items()}
