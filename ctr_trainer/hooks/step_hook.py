"""The bases of hooks, and the order in which the hooks of a training act."""

import enum

import tensorflow as tf

from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.measuring.clock import Clock


class Order(enum.IntEnum):
    """Where a hook stands: those of a lower order are called first, before each session run and after it.

    A hook declares it as its class attribute `order`; hooks of TensorFlow and of users have `OTHER`.
    """

    CLOCK = enum.auto()  # First: a step begins, its session run has ended.
    LOAD = enum.auto()  # Reads what the machine has done, at the end before that goes on with flushes and checkpoints.
    INPUT = enum.auto()  # Feeds a batch, and trains its rows.
    CHECK = enum.auto()  # Ends a training that diverged, before anything of the step is handed on.
    AVERAGE = enum.auto()  # Averages the dense variables, before a sync takes a core of a rank that others wait for.
    SYNC = enum.auto()  # Hands the rows on.
    LOSS = enum.auto()  # All ranks agree that the service has taken them.
    EVICT = enum.auto()  # Rows go with time.
    SAVE = enum.auto()  # Saves what all workers have handed on.
    PUBLISH = enum.auto()  # Offers to its readers what is saved.
    LINES = enum.auto()  # Makes these lines.
    TAKE = enum.auto()  # Takes them, and closes its files at the end.
    WATCH = enum.auto()  # Looks at what the others have done.
    OTHER = enum.auto()
    STOP = enum.auto()  # All ranks agree that this step is the last one, before they evaluate.
    EVALUATE = enum.auto()  # Evaluates what is trained, handed on and saved.
    TRACE = enum.auto()  # A step has ended.
    SESSION = enum.auto()  # Last: its session run begins.


def in_order(hooks):
    """-> list of the hooks, sorted; those of one order stay as they are."""
    return sorted(hooks, key=lambda hook: getattr(hook, "order", Order.OTHER))


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


class PeriodicHook(StepHook):
    """Acts after each step that its period says; what that takes is of the hook's phase.

    Subclasses define `act(run_context)`.

    Args:
      period: `EverySteps` or another of `periods`.
      clock: `Clock` of the thread of the steps; None where nobody looks at it.
    """

    def __init__(self, period, clock=None):
        super().__init__()
        self._period, self._clock = period, clock or Clock()

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._period.begin()

    def after_step(self, run_context, run_values):
        if self._period.is_due(self.step):
            with self._clock.within(self.phase):
                self.act(run_context)

    def act(self, run_context):
        """What is to be done after a step that is due."""
        raise NotImplementedError(f"{type(self).__name__} must define act")
