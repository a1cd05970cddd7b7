"""Measures how much of a step is spent on the exchange of dense gradients alone."""

import statistics

import tensorflow as tf

from ctr_trainer.hooks.step_hook import StepHook

tf1 = tf.compat.v1
_FIRST = 20


class ExchangeHook(StepHook):
    """Has TensorFlow time the operations of a step now and then: of the 20th of a run, then of every N-th.

    Args:
      every_n_steps: at least 21; a timed step takes some milliseconds more.

    Attributes:
      shares: list, of each timed session run: the share of it in which nothing but the exchange ran.
    """

    def __init__(self, every_n_steps=1000):
        super().__init__()
        if every_n_steps <= _FIRST:
            raise ValueError(f"every_n_steps must be above {_FIRST}, not {every_n_steps}")
        self._every_n_steps, self._runs = every_n_steps, 0
        self.shares = []

    @property
    def share(self):
        """-> the median of `shares`; 0 where there are none."""
        return statistics.median(self.shares) if self.shares else 0.0

    def before_run(self, run_context):
        if self._runs % self._every_n_steps == _FIRST:
            # Of the CPU's side only: a GPU's tracer would be in the way of a profile that is being taken.
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE))
        return None

    def after_run(self, run_context, run_values):
        if self._runs % self._every_n_steps == _FIRST and run_values.run_metadata is not None:
            share = exchange_share(run_values.run_metadata.step_stats)
            if share is not None:
                self.shares.append(share)
        self._runs += 1


def exchange_share(step_stats):
    """-> the share of a session run in which only the exchange ran; None of a run without one.

    Args:
      step_stats: `tf.compat.v1.RunMetadata`'s.
    """
    exchanges, others = [], []
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            span = node.all_start_micros, node.all_start_micros + node.all_end_rel_micros
            names = f"{node.timeline_label} {node.node_name}"
            is_exchange = "Horovod" in names or "host_sum" in names
            (exchanges if is_exchange else others).append(span)
    if not exchanges:
        return None
    everything = covered(exchanges + others)
    return 1 - covered(others) / everything if everything else 0.0


def covered(spans):
    """-> the length of the union of (start, end) spans."""
    total, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total, reached = total + end - start, end
        elif end > reached:
            total, reached = total + end - reached, end
    return total
