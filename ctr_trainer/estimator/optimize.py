"""Builds the optimizer step of a loss: of the dense variables, and the gradients of the embedding rows."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator import schedules
from ctr_trainer.estimator.built_step import BuiltStep, RowTraining, RunFacts
from ctr_trainer.estimator.dense_optimizers import DenseUpdate
from ctr_trainer.estimator.run_length import RunLength, StepsOfEpochs
from ctr_trainer.estimator.schedules import Plateau, cooldown_steps
from ctr_trainer.estimator.step_gradients import step_gradients
from ctr_trainer.ranks import dense_exchange, distributed
from ctr_trainer.ranks.dense_exchange import Exchange
from ctr_trainer.settings.schedule import OF_THE_RUN, Schedule
from ctr_trainer.settings.train_settings import LrGroups, TrainSettings

_log = logging.getLogger(__name__)
_ROWS_COOLDOWN_SHARE = 0.1


class TrainOp(TrainSettings):
    """Makes the step of a loss: averages dense gradients over the workers, with one backward pass for all.

    With K workers and A = `accumulation_steps`, `scale` is K, sqrt(K), 1, K A or sqrt(K A) (`linear`, `sqrt`, `none`,
    `linear_batches`, `sqrt_batches`). g_r is the gradient of the loss averaged over worker r's examples, and W_r is the
    sum of their weights. The updates are

        dense:  w -= scale * learning_rate * optimizer(sum_r W_r g_r / sum_r W_r)
        rows:   see `embedding.worker.merging`, whose s is `scale`, with K W_r / sum_s W_s g_r instead of g_r

    With SGD, both parts are therefore updated as by one worker with all examples in one batch: the sum of K steps of
    size 1/K is a mean. With `accumulation_steps`, the sums also run over the micro-batches, which share one step.

    With `dense_sync_steps` = N > 1 (local SGD), each worker updates its own dense variables with its own g_r. Every N
    steps, the variables and the optimizer state become their mean over the workers:

        dense:  w_r -= scale * learning_rate * optimizer(g_r);  after N steps  w = sum_r w_r / K
        rows:   as above with 1 instead of K W_r / sum_s W_s

    The dense variables of a worker then lack up to N steps of the other workers. The means count all workers equally,
    whatever the weights of their examples.

    Staleness: with `overlap_allreduce`, the dense gradients of a step are reduced while the next step runs, and applied
    at its end. They are therefore computed on variables that lack the gradients of the previous step. No gradient is
    lost: a checkpoint, and so the end of training, first applies the gradients that are being reduced, and the next
    step applies none. Rows are updated as in local SGD, because the other workers' weights are not known in time.

    After the reduction, `l2 * w` is added to the gradients, and then they are clipped.

    Attributes: see `TrainSettings`.

    Raises:
      UserError: a setting is out of its range.

    Source: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019, algorithm 1.
    """

    def __call__(self, loss: tf.Tensor, features: Any) -> "PlannedStep":
        """Returns the `train_op` of an `EstimatorSpec`, which the Estimator builds when it knows the run."""
        return PlannedStep(self, loss, features)

    def build(self, loss: tf.Tensor, features: Any, run: RunFacts) -> BuiltStep:
        """Adds the operations of a step to the graph of a loss."""
        step = tf1.train.get_or_create_global_step().read_value()
        length = dataclasses.replace(run.length, accumulation_steps=self.accumulation_steps)
        plateau = self._plateau()
        learning_rate, rows_learning_rate = self._learning_rates(step, length, plateau)
        several = distributed.size() > 1
        exchanges = self.dense_sync_steps == 1 and several
        overlap = self.overlap_allreduce and exchanges
        only_horovod = "the gradients are reduced while the next step runs" if overlap else ""
        only_horovod = "the gradients travel as float16" if self.fp16_allreduce else only_horovod
        exchange = dense_exchange.exchange(run.dense_exchange, only_horovod)
        count = step - 1 if overlap else step
        gradients = step_gradients(
            DenseUpdate(
                self.dense_optimizer, learning_rate, count, self.l2, self.clip_norm, LrGroups.parse(self.lr_groups)
            ),
            loss,
            tf.reduce_sum(features["weight"]),
            features.placeholders,
            run_length=length,
            exchange=exchange if exchanges else None,
            accumulation_steps=self.accumulation_steps,
            overlap=overlap,
            fp16=self.fp16_allreduce,
            scales_loss=run.scales_loss,
        )
        share = None
        if exchanges and not overlap:
            share = tf.math.divide_no_nan(float(distributed.size()), gradients.weight)
        elif self.accumulation_steps > 1:
            share = tf.math.reciprocal_no_nan(gradients.own_weight)
        begin = drain = None
        if overlap:
            begin = next_step([*gradients.kept, *gradients.after])
            drain = tf.group(*gradients.update())
        with tf.control_dependencies(gradients.kept):  # With an overlap, after the whole step has read the variables.
            train_op = next_step([*gradients.update(), *gradients.after])
        return BuiltStep(
            train_op=train_op,
            run_length=length,
            rows=RowTraining(gradients.rows, rows_learning_rate, self._scale(), share),
            accumulate=gradients.accumulate,
            accumulation_steps=self.accumulation_steps,
            begin=begin,
            drain=drain,
            dense_sync_steps=self.dense_sync_steps,
            exchange=exchange,
            exchange_text=str(exchange) if exchanges or not several else self._averaged(exchange),
            fp16=self.fp16_allreduce,
            plateau=plateau,
        )

    def _averaged(self, exchange: Exchange) -> str:
        """Returns the log line for workers that average their dense variables."""
        by = "through shared memory" if exchange.is_in_memory else "by hvd.allreduce"
        return (
            f"gradient exchange: none; every {self.dense_sync_steps} steps the workers average their dense variables "
            f"{by}, because dense_sync_steps={self.dense_sync_steps} was chosen"
        )

    def _scale(self) -> float:
        """Returns the factor that scales the learning rates with the number of workers."""
        return distributed.lr_scale(self.scale_lr, self.accumulation_steps)

    def _plateau(self) -> Plateau | None:
        """Returns the factor that evaluations lower; None if learning rates do not depend on them."""
        schedule = self.schedule
        return Plateau(schedule.decay_rate, schedule.end, schedule.patience) if schedule.name == "plateau" else None

    def _learning_rates(self, step: tf.Tensor, run: RunLength, plateau: Plateau | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the learning rates of the dense variables and of the rows, scalar tensors."""
        begin, end = run.begin, run.end()
        epochs = run.steps_of_epochs()
        factor = schedules.factor(self.schedule, step, begin, end, epochs, plateau)
        rows = self._row_schedule(begin, end, epochs)
        rows_factor = factor if rows == self.schedule else schedules.factor(rows, step, begin, end, epochs, plateau)
        row_rate = self.embedding_learning_rate * rows_factor
        if distributed.is_chief():
            for line in _rate_lines(self.schedule, rows, run):
                _log.info("%s", line)
        dense = tf.multiply(self._scale() * self.learning_rate, factor, name="learning_rate")
        return dense, tf.convert_to_tensor(row_rate)

    def _row_schedule(self, begin: int, end: int | None, epochs: StepsOfEpochs | None) -> Schedule:
        """Returns the `Schedule` of the rows. Its cooldown is short, because new rows still have much to learn."""
        follows = self.embedding_lr_schedule in ("auto", "same")
        rows = self.schedule if follows else Schedule(self.embedding_lr_schedule)
        if rows.name != "cooldown" or rows.decay_steps or end is None or self.embedding_lr_schedule == "same":
            return rows
        steps = cooldown_steps(end - begin, _ROWS_COOLDOWN_SHARE)
        return dataclasses.replace(rows, decay_steps=steps / epochs.steps if epochs and rows.unit == "epoch" else steps)


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """The `train_op` of an `EstimatorSpec` that the Estimator has yet to build: the step of a loss by a `TrainOp`.

    Attributes:
      features: the features of the `model_fn`.
    """

    settings: TrainOp
    loss: tf.Tensor
    features: Any

    def build(self, run: RunFacts) -> BuiltStep:
        """Adds the operations of the step to the current graph."""
        return self.settings.build(self.loss, self.features, run)


def next_step(operations: Iterable[tf.Operation]) -> tf.Operation:
    """Returns the operation that increments the global step after the operations, which may read the old value."""
    with tf.control_dependencies(list(operations)):
        return tf1.train.get_or_create_global_step().assign_add(1, read_value=False)


def _rate_lines(schedule: Schedule, rows: Schedule, run: RunLength) -> Iterator[str]:
    """Yields the log lines about the rates of the dense variables and the rows, and about an end that has changed."""
    end, depends = run.end(), schedule.depends_on_end or rows.depends_on_end
    if end == run.start:
        return
    if depends and end is not None and run.earlier_end not in (None, end) and run.start > run.begin:
        yield f"this run ends at step {end}, and until step {run.start} it was to end at {run.earlier_end}"
    of_each = {"the dense variables": schedule, "the rows": rows}
    for what, of in of_each.items() if schedule != rows else [("the dense variables and of the rows", schedule)]:
        warm = schedules.warm_up_end(of, run.steps_of_epochs())
        parts = [_decay_text(of, run), f"with a warm-up until step {warm:.10g}" if warm > run.start else ""]
        if any(parts):
            yield ", ".join(filter(None, (f"the learning rate of {what}: {of.name}", *parts)))


def _decay_text(schedule: Schedule, run: RunLength) -> str:
    """Returns what a schedule does after its warm-up, from the start of this run on; "" if there is nothing to say.

    The text names only changes after the first step of the run. If the number of workers has changed, earlier changes
    may belong to steps that were never made.
    """
    start, end, epochs = run.start, run.end(), run.steps_of_epochs()
    if schedule.name == "piecewise":
        changes = schedules.changes(schedule, epochs)
        now = [schedule.factors[0], *(factor for factor, step in changes if step <= start)][-1]
        later = "".join(f", {factor:g} of it from step {step} on" for factor, step in changes if step > start)
        return f"{now:g} of its full value from step {start} on{later}"
    if schedule.name == "step":
        now, following = schedules.stair(schedule, start, epochs)
        _, steps = schedules.span(schedule, 0, None, epochs)
        later = f", multiplied by {schedule.decay_rate:g} every {steps:g} steps, next at step {following}"
        return f"{now:g} of its full value from step {start} on{'' if now <= schedule.end else later}"
    if schedule.depends_on_end and end is None:
        return (
            "constant, because the number of steps of this run is not known (the input does not say it, and max_steps "
            "is not set); with max_steps it falls towards the end of the run"
        )
    first, steps = schedules.span(schedule, run.begin, end, epochs)
    last = first + steps
    if not steps or schedule.name not in OF_THE_RUN:
        return ""
    if last <= start:
        return f"{schedule.end:g} of its full value since step {last:.10g}"
    # A resumed run may be within its decay, whose first step is then an earlier one, or was never made.
    falls = f"to {schedule.end:g} of its full value at step {last:.10g}"
    if first >= start:
        falls = f"from its full value at step {first:.10g} to {schedule.end:g} of it at step {last:.10g}"
    is_new = schedule.depends_on_end and start == run.begin > 0  # The previous run had reached its end.
    return f"{falls}; it restarts because the previous run ended at step {start}" if is_new else falls
