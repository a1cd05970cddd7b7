"""The operations of an optimizer step, as building a graph returns them."""

import dataclasses

import tensorflow as tf

from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.estimator.schedules import Plateau
from ctr_trainer.ranks.dense_exchange import Exchange


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What the operations of a step depend on besides the model.

    Attributes:
      length: the length of the run, on which learning-rate schedules depend.
      dense_exchange: how dense gradients are exchanged, one of `dense_exchange.WAYS`.
      scales_loss: whether to scale the loss, because gradients are computed in float16.
    """

    length: RunLength = RunLength()
    dense_exchange: str = "auto"
    scales_loss: bool = False


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
class BuiltStep:
    """The runs of an optimizer step: `accumulate` on the first `accumulation_steps` - 1 batches, then `train_op`.

    Attributes:
      run_length: the length of the run in these steps.
      rows: how the embedding rows are trained; None if the model has none.
      accumulate: operation that adds the gradients of a micro-batch to the sum; None if a step has one batch.
      accumulation_steps: micro-batches per optimizer step.
      begin: operation that keeps the gradients of a step; None if each step applies its own gradients. It replaces
        `train_op` in the first step, and in the first step after each `drain`. In all other steps, `train_op` applies
        the gradients of the previous step.
      drain: operation that applies the most recently kept gradients; None if each step applies its own gradients.
      dense_sync_steps: optimizer steps after which the workers average their dense variables; 1 if they exchange the
        gradients of each step instead, so that the variables are always equal.
      exchange: how the workers exchange gradients or variables; None if the program's own `train_op` does.
      exchange_text: the log line that says how and why.
      fp16: whether they exchange float16.
      plateau: `schedules.Plateau`; None if learning rates do not depend on evaluations.
    """

    train_op: tf.Operation
    run_length: RunLength
    rows: RowTraining | None = None
    accumulate: tf.Operation | None = None
    accumulation_steps: int = 1
    begin: tf.Operation | None = None
    drain: tf.Operation | None = None
    dense_sync_steps: int = 1
    exchange: Exchange | None = None
    exchange_text: str = "gradient exchange: by the train_op of the model_fn, because it was not made by this package"
    fp16: bool = False
    plateau: Plateau | None = None

    @property
    def steps_wait(self) -> bool:
        """Whether the workers wait for each other at each optimizer step."""
        return self.dense_sync_steps == 1
