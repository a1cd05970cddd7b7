"""The plan of a graph's optimizer step, which the training loop and the hooks have to know."""

import dataclasses
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "step plan")  # No string, so that TensorFlow does not try to serialize what is under it.


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """An optimizer step is `accumulation_steps` - 1 runs of `accumulate`, each on a batch, then one of `train_op`.

    Attributes:
      accumulate: operation that adds the gradients of a micro-batch to those before; None if a step is one batch.
      accumulation_steps: micro-batches per optimizer step.
      begin: operation that keeps the gradients of a step; None if each step applies its own gradients. It takes the
        place of `train_op` in the first step, and in the first step after each `drain`. In all other steps `train_op`
        applies the gradients of the step before.
      drain: operation that applies the gradients kept last; None if each step applies its own gradients.
      dense_sync_steps: optimizer steps after which the workers average their dense variables; 1 if they exchange the
        gradients of each step instead, so that the variables are always equal.
      exchange: the sentence of the log that says how the workers exchange gradients, and why.
    """

    accumulate: Any = None
    accumulation_steps: int = 1
    begin: Any = None
    drain: Any = None
    dense_sync_steps: int = 1
    exchange: str = "gradient exchange: by the train_op of the model_fn, because it was not made by this package"

    @property
    def steps_wait(self):
        """Whether the workers wait for each other at each optimizer step."""
        return self.dense_sync_steps == 1


def record(plan):
    """Keeps the plan of the current graph's `train_op`."""
    tf1.get_default_graph().clear_collection(_KEY)
    tf1.add_to_collection(_KEY, plan)


def is_recorded():
    """-> whether the current graph's `train_op` was made by this package."""
    return bool(tf1.get_collection(_KEY))


def current():
    """-> the plan of the current graph; if none was recorded, the plan of one batch per step."""
    plans = tf1.get_collection(_KEY)
    return plans[0] if plans else StepPlan()
