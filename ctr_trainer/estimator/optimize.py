"""The training operation of the dense variables, and the gradients of the embedding rows."""

import dataclasses

import tensorflow as tf

from ctr_trainer import distributed, step_plan
from ctr_trainer.errors import UserError
from ctr_trainer.estimator.exchange import weighted_mean
from ctr_trainer.estimator.lr_groups import LrGroups
from ctr_trainer.estimator.optimizers import DenseOptimizer, is_kernel
from ctr_trainer.estimator.schedules import Schedule
from ctr_trainer.layers.batch_norm import batch_statistics

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class TrainOp:
    """Makes the `train_op` of a loss: dense gradients averaged over the workers, one backward pass for all.

    With K workers, `scale` = K, sqrt(K) or 1 (`linear`, `sqrt`, `none`), g_r the gradient of the loss averaged over
    worker r's examples, and W_r the sum of their weights:

        dense:  w -= scale * learning_rate * optimizer(sum_r W_r g_r / sum_r W_r)
        rows:   each worker w -= (scale / K) * embedding_learning_rate * optimizer(K W_r / sum_s W_s * its own g_r),
                the service adds all K

    so that with SGD both parts move alike, as one worker's would on all the examples in one batch: the service's sum of
    K steps of size 1/K is a mean. Over `accumulation_steps` micro-batches the sums go over these too, and there is one
    step for them all.

    With `dense_sync_steps` = N > 1 (local SGD) each worker steps its own dense variables by its own g_r, and every N
    steps all of them, with the optimizer's state, become their mean over the workers:

        dense:  w_r -= scale * learning_rate * optimizer(g_r);  after N steps  w = sum_r w_r / K
        rows:   as above with 1 in place of K W_r / sum_s W_s

    A worker's dense variables then lag behind the others' by up to N steps, and the means are of workers, whatever
    the weights of their examples.

    The gradients are clipped and regularized after the reduction: + l2 * w, then the clipping.

    Attributes:
      optimizer: `DenseOptimizer`, or its name.
      learning_rate, embedding_learning_rate: of one worker.
      scale_lr: `linear`, `sqrt` or `none`.
      fp16_allreduce: send dense gradients as float16.
      schedule: of the learning rates.
      embedding_schedule: whether the schedule is also that of the rows' learning rate; else that is constant.
      accumulation_steps: micro-batches, each of the batch size, of an optimizer step.
      dense_sync_steps: N; 1 reduces the gradients of each step.
      clip_norm: the largest global norm of the dense gradients; 0 for any.
      l2: of the gradients of kernels, see `optimizers.is_kernel`: the loss plus l2 / 2 * sum w^2.
      lr_groups: `LrGroups`.

    Raises:
      UserError: a setting out of its range.

    Source: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019, algorithm 1.
    """

    optimizer: DenseOptimizer | str = "adagrad"
    learning_rate: float = 0.02
    embedding_learning_rate: float = 0.05
    scale_lr: str = "linear"
    fp16_allreduce: bool = False
    schedule: Schedule = Schedule()
    embedding_schedule: bool = True
    accumulation_steps: int = 1
    dense_sync_steps: int = 1
    clip_norm: float = 0.0
    l2: float = 0.0
    lr_groups: LrGroups = LrGroups()

    def __post_init__(self):
        for name in ("accumulation_steps", "dense_sync_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)} must be at least 1")
        for name in ("clip_norm", "l2"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name}={getattr(self, name):g} must be at least 0")
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", DenseOptimizer(self.optimizer))

    def __call__(self, loss, features):
        """-> the train_op; sets `features.gradients`, `features.learning_rate` and `features.row_scale`."""
        step = tf1.train.get_or_create_global_step().read_value()
        learning_rate = self._learning_rates(step, features)
        exchange = self.dense_sync_steps == 1
        variables, gradients = self._gradients(loss, features)
        statistics = batch_statistics()
        mean = weighted_mean(
            [*gradients, *(each.value for each in statistics)],
            tf.reduce_sum(features["weight"]),
            features.batch_size,
            self.accumulation_steps,
            exchange,
            self.fp16_allreduce,
        )
        if mean.accumulate is not None or (exchange and distributed.size() > 1):
            workers = distributed.size() if exchange else 1
            features.row_scale = tf.math.divide_no_nan(tf.cast(workers, tf.float32), mean.weight)
        step_plan.record(step_plan.StepPlan(mean.accumulate, self.accumulation_steps, self.dense_sync_steps))
        updates = self._updates(variables, mean.tensors[: len(variables)], learning_rate, step)
        updates += [
            each.update(value, mean.weight)
            for each, value in zip(statistics, mean.tensors[len(variables) :], strict=True)
        ]
        # Whatever reads the step has done so before it is raised.
        with tf.control_dependencies([*updates, *mean.after]):
            return tf1.train.get_or_create_global_step().assign_add(1, read_value=False)

    def _learning_rates(self, step, features):
        """-> the dense variables' learning rate; sets the rows'."""
        scale = distributed.lr_scale(self.scale_lr)
        factor = self.schedule.factor(step)
        rows = scale / distributed.size() * self.embedding_learning_rate
        features.learning_rate = rows * factor if self.embedding_schedule else tf.constant(rows)
        return tf.multiply(scale * self.learning_rate, factor, name="learning_rate")

    def _gradients(self, loss, features):
        """-> (dense variables, their gradients) as far as the loss depends on them; sets the rows'."""
        variables, rows = tf1.trainable_variables(), features.placeholders
        gradients = tf.gradients(loss, variables + rows)
        of_rows = gradients[len(variables) :]
        features.gradients = {row.name: g for row, g in zip(rows, of_rows, strict=True) if g is not None}
        found = [(v, tf.convert_to_tensor(g)) for v, g in zip(variables, gradients, strict=False) if g is not None]
        return [v for v, _ in found], [g for _, g in found]

    def _updates(self, variables, gradients, learning_rate, step):
        if self.l2:
            gradients = [g + self.l2 * v if is_kernel(v) else g for v, g in zip(variables, gradients, strict=True)]
        if self.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        factors = self.lr_groups.factors_of(variables)
        return [
            self.optimizer.update(v, g, learning_rate if factor == 1 else factor * learning_rate, step)
            for v, g, factor in zip(variables, gradients, factors, strict=True)
        ]
