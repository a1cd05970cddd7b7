"""Writes TensorBoard summaries."""

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook, periodic

tf1 = tf.compat.v1


class SummaryHook(StepHook):
    """Writes each `Line` of the training that is due; rank 0 only.

    Args:
      directory: where the event file goes.
      every_n_steps, every_n_secs: exactly one; a line is due if it is the first after so long.
    """

    order = Order.TAKE

    def __init__(self, directory, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._directory = directory

    def begin(self):
        super().begin()
        # The one that the session's own hooks write to as well.
        self._writer = tf1.summary.FileWriterCache.get(self._directory)
        self._writer.add_graph(tf1.get_default_graph())

    def after_step(self, run_context, run_values):
        """The lines come by `take`."""

    def take(self, line):
        """Writes a `Line`, if it is due."""
        if self._timer.should_trigger_for_step(line.step):
            self._timer.update_last_triggered_step(line.step)
            summary = tf1.Summary(value=[tf1.Summary.Value(tag=k, simple_value=v) for k, v in line.figures().items()])
            self._writer.add_summary(summary, line.step)

    def end(self, session):
        self._writer.flush()
