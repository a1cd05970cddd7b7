"""Writes TensorBoard summaries."""

import tensorflow as tf

from ctr_trainer.hooks.step_hook import StepHook, periodic

tf1 = tf.compat.v1


class SummaryHook(StepHook):
    """Writes the loss and what the other hooks left in `scalars`; rank 0 only.

    Args:
      directory: where the event file goes.
      loss: scalar tensor.
      scalars: dict of name -> float, filled by other hooks.
      every_n_steps, every_n_secs: exactly one.
    """

    def __init__(self, directory, loss, scalars, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._directory, self._loss, self._scalars = directory, loss, scalars

    def begin(self):
        super().begin()
        # The one that the session's own hooks write to as well.
        self._writer = tf1.summary.FileWriterCache.get(self._directory)
        self._writer.add_graph(tf1.get_default_graph())

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._loss)

    def after_step(self, run_context, run_values):
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            values = {"loss": float(run_values.results), **self._scalars}
            summary = tf1.Summary(value=[tf1.Summary.Value(tag=k, simple_value=v) for k, v in values.items()])
            self._writer.add_summary(summary, self.step)

    def end(self, session):
        self._writer.flush()
