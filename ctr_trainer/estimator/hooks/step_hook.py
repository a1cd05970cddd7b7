"""The base class of hooks that act after a step."""

import tensorflow.compat.v1 as tf1


class StepHook(tf1.train.SessionRunHook):
    """Base class of hooks that act after a step. Hooks observe a training: they change no rows and no variables.

    It counts steps itself, because a global step that is fetched together with the operation that increments it may
    have the old or the new value.

    Subclasses define `after_step(run_context, run_values)`, in which `self.step` is the number of the step whose run
    has just ended; its rows are trained afterwards. A step is an optimizer step. If it has several micro-batches,
    `after_micro_batch` is called for all but the last, and `after_step` for the last. `before_run` is called for each
    micro-batch.
    """

    def __init__(self) -> None:
        self.step = 0

    def begin(self) -> None:
        self._global_step = tf1.train.get_or_create_global_step()

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        fetches = run_context.original_args.fetches
        if isinstance(fetches, dict) and "accumulate" in fetches:  # See `TrainingSteps.train_step`.
            self.after_micro_batch(run_context, run_values)
            return
        self.step += 1
        self.after_step(run_context, run_values)

    def after_micro_batch(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        """Called after each micro-batch of a step except the last one. Does nothing by default."""

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        """Called after each step."""
        raise NotImplementedError(f"{type(self).__name__} must define after_step")
