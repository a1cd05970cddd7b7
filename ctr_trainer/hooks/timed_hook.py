"""How long a hook takes."""

import time

import tensorflow as tf


class TimedHook(tf.compat.v1.train.SessionRunHook):
    """Another hook, and the time it takes before and after each run.

    Args:
      hook: to call.

    Attributes:
      hook: the same.
      seconds: so far, in `before_run` and `after_run`.
    """

    def __init__(self, hook):
        self.hook = hook
        self.seconds = 0.0

    @property
    def seconds_by_phase(self):
        """By phase, what of `seconds` went to it; all to `hooks` if the hook does not say."""
        split = getattr(self.hook, "seconds_by_phase", None)  # Hooks of TensorFlow and of users have none.
        return split(self.seconds) if split else {"hooks": self.seconds}

    def begin(self):
        self.hook.begin()

    def after_create_session(self, session, coord):
        self.hook.after_create_session(session, coord)

    def before_run(self, run_context):
        start = time.perf_counter()
        arguments = self.hook.before_run(run_context)
        self.seconds += time.perf_counter() - start
        return arguments

    def after_run(self, run_context, run_values):
        start = time.perf_counter()
        self.hook.after_run(run_context, run_values)
        self.seconds += time.perf_counter() - start

    def end(self, session):
        self.hook.end(session)
