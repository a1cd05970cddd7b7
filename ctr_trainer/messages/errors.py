"""Errors for the user to read."""

import dataclasses
import functools
import re

from ctr_trainer.messages import exit_status

# TensorFlow's errors have lines about the graph: where the operation was made, and its neighbours. `_OF_A_NODE` finds
# the text between these lines.
_OF_A_NODE = re.compile(r"^Node: '[^\n]*'\n(.*?)(?:\n\t ?\[\[|\n\nOriginal stack trace|\Z)", re.DOTALL | re.MULTILINE)


class UserError(Exception):
    """An error that the user can mend: a wrong flag, file or row, or a service that is gone.

    The command line prints the message without a traceback. So the message says what was wrong, where it was (file,
    row, column, value) and what to do.
    """


class Lost(UserError):
    """A rank, a host or a service that the job needs is gone: the same command may go on when it is back."""


class ServiceLost(Lost):
    """The embedding service does not answer or was restarted: changes of rows since the last checkpoint are lost."""


class StoppedInOrder(UserError):
    """A training has ended as a signal asked it to: after a step, and with its checkpoint saved.

    Args:
      text: what it says last.
      number: of the signal.

    Attributes:
      status: the exit status of a process that ends so.
    """

    def __init__(self, text, number):
        super().__init__(text)
        self.status = 128 + number


@dataclasses.dataclass(frozen=True)
class ErrorEnd:
    """How an exception ends a process.

    Attributes:
      told: what it tells the user, in whole sentences; "" of an exception that was not made for users.
      status: the exit status.
      is_in_order: whether nothing is wrong.
    """

    told: str = ""
    status: int = exit_status.FAILED
    is_in_order: bool = False


@functools.singledispatch
def end_of(error):
    """-> `ErrorEnd` of an exception."""
    return ErrorEnd()


@end_of.register
def _(error: UserError):
    return ErrorEnd(str(error), exit_status.REFUSED)


@end_of.register
def _(error: Lost):
    return ErrorEnd(str(error), exit_status.LOST)


@end_of.register
def _(error: StoppedInOrder):
    return ErrorEnd(str(error), error.status, is_in_order=True)


def reason(error):
    """-> the message of an exception in one line; of TensorFlow's errors the part that is not about the graph."""
    text = str(error)
    found = _OF_A_NODE.search(text)
    lines = [line.strip() for line in (found.group(1) if found else text).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
