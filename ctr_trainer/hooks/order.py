"""The order in which the hooks of a training act."""

import enum


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
