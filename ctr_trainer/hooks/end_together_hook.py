"""Ends a training after the last batch of any rank."""

import tensorflow as tf

from ctr_trainer.hooks.order import Order


class EndTogetherHook(tf.compat.v1.train.SessionRunHook):
    """Stops after the step behind which no rank has another batch; on all ranks after the same one.

    Args:
      next_total: scalar tensor, equal on all ranks: the weight of all ranks' next batches.
    """

    order = Order.INPUT

    def __init__(self, next_total):
        self._next_total = next_total

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._next_total)

    def after_run(self, run_context, run_values):
        if run_values.results == 0:
            run_context.request_stop()
