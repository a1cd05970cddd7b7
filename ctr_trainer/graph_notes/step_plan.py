"""How a graph's optimizer step is carried out: what the training loop and the hooks have to know of it."""

import dataclasses
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "step plan")  # No string, so that TensorFlow does not try to serialize what is under it.


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """An optimizer step is `accumulation_steps` - 1 runs of `accumulate`, each on a batch, then one of `train_op`.

    Attributes:
      accumulate: operation that adds the gradients of a micro-batch to those before; None where a step is one batch.
      accumulation_steps: micro-batches of an optimizer step.
      begin: operation that takes `train_op`'s place in the first step and in the first after each `drain`: it keeps the
        step's gradients; None where each step applies its own. `train_op` then applies those of the step before.
      drain: operation that applies the gradients kept last.
      dense_sync_steps: optimizer steps after which the workers average their dense variables; 1 where they reduce the
        gradients of each step, so that the variables are equal at all times.
    """

    accumulate: Any = None
    accumulation_steps: int = 1
    begin: Any = None
    drain: Any = None
    dense_sync_steps: int = 1


def record(plan):
    """Keeps the plan of the current graph's `train_op`."""
    tf1.get_default_graph().clear_collection(_KEY)
    tf1.add_to_collection(_KEY, plan)


def is_recorded():
    """-> whether the current graph's `train_op` is one of the package."""
    return bool(tf1.get_collection(_KEY))


def current():
    """-> the plan of the current graph; where none was recorded, that of one batch a step."""
    plans = tf1.get_collection(_KEY)
    return plans[0] if plans else StepPlan()
