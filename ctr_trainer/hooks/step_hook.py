"""The base of the hooks that act after a step."""

import tensorflow as tf

from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.hooks.order import Order


class StepHook(tf.compat.v1.train.SessionRunHook):
    """Counts steps itself: a global step fetched beside the operation that raises it may come out either way.

    Subclasses define `after_step(run_context, run_values)`, in which `self.step` is the number of the step just done.
    A step is an optimizer step: where it takes several micro-batches, `after_micro_batch` is called for all but the
    last, after which comes `after_step`. `before_run` is called for each.

    Attributes:
      phase: what the time counts for in which the hook acts, of `phases.PHASES`.
      order: where the hook stands among the others.
    """

    phase, order = "hooks", Order.OTHER
    _accumulate = None

    def __init__(self):
        self.step = 0

    def begin(self):
        self._global_step = tf.compat.v1.train.get_or_create_global_step()
        self._accumulate = notes().step_plan.accumulate

    def after_create_session(self, session, coord):
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context, run_values):
        if self._accumulate is not None and run_context.original_args.fetches is self._accumulate:
            self.after_micro_batch(run_context, run_values)
            return
        self.step += 1
        self.after_step(run_context, run_values)

    def after_micro_batch(self, run_context, run_values):
        """Called after each micro-batch of a step but its last; by default does nothing."""

    def after_step(self, run_context, run_values):
        """Called after each step."""
        raise NotImplementedError(f"{type(self).__name__} must define after_step")


def periodic(every_n_steps=None, every_n_secs=None):
    """-> a timer for exactly one of the two periods; raises ValueError for none or both."""
    if (every_n_steps is None) == (every_n_secs is None):
        raise ValueError(f"give one of every_n_steps ({every_n_steps}) and every_n_secs ({every_n_secs})")
    return tf.compat.v1.train.SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps)
