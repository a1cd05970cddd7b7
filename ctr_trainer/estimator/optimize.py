"""Builds the optimizer step of a loss: of the dense variables, and the gradients of the embedding rows."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator import dense_optimizers
from ctr_trainer.estimator.built_step import BuiltStep, optimizer_step
from ctr_trainer.estimator.dense_optimizers import DenseUpdate, Plateau, cooldown_steps
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.ranks import dense_exchange as exchanges
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.train_settings import Schedule, TrainSettings

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

    After the reduction, `l2 * w` is added to the gradients, and then they are clipped.

    Attributes: see `TrainSettings`.

    Raises:
      UserError: a setting is out of its range.

    Source: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019, algorithm 1.
    """

    def __call__(self, loss: tf.Tensor, features: Any) -> Callable[..., BuiltStep]:
        """Returns the `train_op` of an `EstimatorSpec`, which the Estimator calls when it knows the run."""
        return functools.partial(self.build, loss, features)

    def build(
        self,
        loss: tf.Tensor,
        features: Any,
        rows: EmbeddingConfig | None = None,
        length: RunLength = RunLength(),  # noqa: B008, it is frozen
        dense_exchange: str = "auto",
        scales_loss: bool = False,
    ) -> BuiltStep:
        """Adds the operations of a step to the graph of a loss.

        Args:
          rows: the run's settings of rows, which must not contradict these; on the command line, one flag sets both.
          length: the length of the run, on which learning-rate schedules depend.
          dense_exchange: how dense gradients are exchanged, one of `dense_exchange.WAYS`.
          scales_loss: whether to scale the loss, because gradients are computed in float16.
        """
        if rows and rows.learning_rate not in (EmbeddingConfig().learning_rate, self.embedding_learning_rate):
            raise rows.refused("{learning_rate}: with a TrainOp, give it as its embedding_learning_rate")
        if rows and self.clip_norm and rows.clip_norm != self.clip_norm:  # It limits both.
            raise rows.refused("{clip_norm}, and the TrainOp has {other}: give both the same", other=self.clip_norm)
        step = tf1.train.get_or_create_global_step().read_value()
        length = dataclasses.replace(length, accumulation_steps=self.accumulation_steps)
        schedule, plateau = self.schedule, None
        if schedule.name == "plateau":
            plateau = Plateau(schedule.decay_rate, schedule.end, schedule.patience)
        scale = distributed.lr_scale(self.scale_lr, self.accumulation_steps)
        factor, of_rows = dense_optimizers.factor(schedule, step, length, plateau), self._row_schedule(length)
        rows_factor = factor if of_rows == schedule else dense_optimizers.factor(of_rows, step, length, plateau)
        for line in rate_lines(schedule, of_rows, length) if distributed.is_chief() else ():
            _log.info("%s", line)
        learning_rate = tf.multiply(scale * self.learning_rate, factor, name="learning_rate")
        only_horovod = "the gradients travel as float16" if self.fp16_allreduce else ""
        return optimizer_step(
            DenseUpdate(self, learning_rate, step),
            loss,
            tf.reduce_sum(features["weight"]),
            features.placeholders,
            tf.convert_to_tensor(self.embedding_learning_rate * rows_factor),
            run_length=length,
            exchange=exchanges.exchange(dense_exchange, only_horovod),
            learning_rate_scale=scale,
            dense_sync_steps=self.dense_sync_steps,
            fp16=self.fp16_allreduce,
            scales_loss=scales_loss,
            plateau=plateau,
        )

    def _row_schedule(self, run: RunLength) -> Schedule:
        """Returns the `Schedule` of the rows. Its cooldown is short, because new rows still have much to learn."""
        follows = self.embedding_lr_schedule in ("auto", "same")
        rows, end = self.schedule if follows else Schedule(self.embedding_lr_schedule), run.end()
        if rows.name != "cooldown" or rows.decay_steps or end is None or self.embedding_lr_schedule == "same":
            return rows
        steps = cooldown_steps(end - run.begin, _ROWS_COOLDOWN_SHARE)
        unit = run.steps_per_epoch if rows.unit == "epoch" else None
        return dataclasses.replace(rows, decay_steps=steps / unit if unit else steps)


def rate_lines(schedule: Schedule, rows: Schedule, run: RunLength) -> Iterator[str]:
    """Yields the log lines about the rates of the dense variables and the rows, and about an end that has changed."""
    start, end = run.start, run.end()
    if end is not None and end <= start:
        return
    if schedule.depends_on_end or rows.depends_on_end:
        if end is not None and run.earlier_end not in (None, end) and start > run.begin:
            yield f"this run ends at step {end}, and until step {start} it was to end at {run.earlier_end}"
    of_each = {"the dense variables": schedule, "the rows": rows}
    for what, of in of_each.items() if schedule != rows else [("the dense variables and of the rows", schedule)]:
        text = (
            "constant, because the number of steps of this run is not known (the input does not say it, and max_steps "
            "is not set); with max_steps it falls towards the end of the run"
        )
        if not (of.depends_on_end and end is None):
            if of.name == "plateau" or (of.name == "constant" and not of.warmup_steps):
                continue
            at = [start, *([] if end is None else [end])]
            factors = dense_optimizers.factors(of, at, run)
            text = " and ".join(f"{factor:.6g} at step {step}" for factor, step in zip(factors, at, strict=True))
            first, steps = dense_optimizers.span(of, run)
            text = f"{text} of its full value" + (
                f", decaying from step {first:.10g} on" if steps and first > start else ""
            )
        yield f"the learning rate of {what}: {of.name}, {text}"
