"""Errors for the user to read."""

import functools
import re

# TensorFlow's errors have lines about the graph: where the operation was made, and its neighbours. `_OF_A_NODE` finds
# the text between these lines.
_OF_A_NODE = re.compile(r"^Node: '[^\n]*'\n(.*?)(?:\n\t ?\[\[|\n\nOriginal stack trace|\Z)", re.DOTALL | re.MULTILINE)


class UserError(Exception):
    """An error that the user can mend: a wrong flag, file or row, or a service that is gone.

    The command line prints the message without a traceback. So the message says what was wrong, where it was (file,
    row, column, value) and what to do.
    """


class ServiceLost(UserError):
    """The embedding service does not answer or was restarted: changes of rows since the last checkpoint are lost."""


@functools.singledispatch
def message(error):
    """-> what an exception tells the user, in whole sentences; "" of one that was not made for users."""
    return ""


@message.register
def _(error: UserError):
    return str(error)


def reason(error):
    """-> the message of an exception in one line; of TensorFlow's errors the part that is not about the graph."""
    text = str(error)
    found = _OF_A_NODE.search(text)
    lines = [line.strip() for line in (found.group(1) if found else text).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
