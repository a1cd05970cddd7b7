"""The base classes of hooks, and the order in which the hooks of a training act."""

import enum
from collections.abc import Iterable

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.periods import EverySteps
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.system.measuring.clock import Clock


class Order(enum.IntEnum):
    """The position of a hook: hooks with a lower order are called first, both before and after each session run.

    A hook declares its position in the class attribute `order`. Hooks of TensorFlow and of users have `OTHER`.
    """

    CLOCK = enum.auto()  # First: records that a step begins, and that its session run has ended.
    LOAD = enum.auto()  # Reads the load of the machine; at the end, before flushes and checkpoints add to it.
    INPUT = enum.auto()  # Feeds a batch, and trains its rows.
    CHECK = enum.auto()  # Ends a training that diverged, before any result of the step is sent.
    AVERAGE = enum.auto()  # Averages the dense variables, before a sync uses a core of a rank for which others wait.
    SYNC = enum.auto()  # Syncs the rows with the service.
    EVICT = enum.auto()  # Removes expired rows.
    SAVE = enum.auto()  # Saves a checkpoint, after all workers have synced.
    PUBLISH = enum.auto()  # Offers the model for publication to servers.
    LINES = enum.auto()  # Creates and writes the lines of the log.
    WATCH = enum.auto()  # Measures and profiles the step, after the hooks above.
    OTHER = enum.auto()
    STOP = enum.auto()  # All ranks agree whether this step is the last one, before they evaluate.
    EVALUATE = enum.auto()  # Evaluates after the step was trained, synced and saved.
    TRACE = enum.auto()  # Reads the trace of a step that has ended.
    SESSION = enum.auto()  # Last: records that the session run begins.


def in_order(hooks: Iterable[tf1.train.SessionRunHook]) -> list[tf1.train.SessionRunHook]:
    """Returns the hooks sorted by their `order`. Hooks with the same order keep their sequence."""
    return sorted(hooks, key=lambda hook: getattr(hook, "order", Order.OTHER))


class StepHook(tf1.train.SessionRunHook):
    """Base class of hooks that act after a step.

    It counts steps itself, because a global step that is fetched together with the operation that increments it may
    have the old or the new value.

    Subclasses define `after_step(run_context, run_values)`, in which `self.step` is the number of the step that has
    just ended. A step is an optimizer step. If it has several micro-batches, `after_micro_batch` is called for all but
    the last, and `after_step` for the last. `before_run` is called for each micro-batch.

    Attributes:
      phase: the phase of `clock.PHASES` to which the time of the hook is added.
      order: the position of the hook, see `Order`.
    """

    phase, order = "hooks", Order.OTHER
    _accumulate = None

    def __init__(self) -> None:
        self.step = 0

    def begin(self) -> None:
        self._global_step = tf1.train.get_or_create_global_step()
        self._accumulate = notes().step_plan.accumulate

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._accumulate is not None and run_context.original_args.fetches is self._accumulate:
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


def periodic(every_n_steps: int | None = None, every_n_secs: float | None = None) -> tf1.train.SecondOrStepTimer:
    """Returns a timer for exactly one of the two periods. Raises ValueError if none or both are given."""
    if (every_n_steps is None) == (every_n_secs is None):
        raise ValueError(f"give one of every_n_steps ({every_n_steps}) and every_n_secs ({every_n_secs})")
    return tf1.train.SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps)


class PeriodicHook(StepHook):
    """Acts after each step at which its period is due. The time of the action is added to the hook's phase.

    Subclasses define `act(run_context)`.

    Args:
      period: determines when to act.
      clock: `Clock` of the training thread; None if it is not needed.
    """

    def __init__(self, period: EverySteps, clock: Clock | None = None) -> None:
        super().__init__()
        self._period, self._clock = period, clock or Clock()

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._period.begin()

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._period.is_due(self.step):
            with self._clock.within(self.phase):
                self.act(run_context)

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        """Acts after a step that is due."""
        raise NotImplementedError(f"{type(self).__name__} must define act")
