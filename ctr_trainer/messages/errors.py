"""The errors a user is meant to read."""

import re

# Of TensorFlow's errors the lines about the graph: where the operation was made, and what stood around it.
_OF_A_NODE = re.compile(r"^Node: '[^\n]*'\n(.*?)(?:\n\t ?\[\[|\n\nOriginal stack trace|\Z)", re.DOTALL | re.MULTILINE)


class UserError(Exception):
    """Something the user can mend: a flag, a file, a row, a service that is gone.

    The command line prints its message without a traceback, so the message says what was wrong, where
    (file, row, column, value) and what to do.
    """


class ServiceLost(UserError):
    """The embedding service does not answer, or was restarted: the rows since the last checkpoint are gone."""


def reason(error):
    """-> what an exception says, in one line; of TensorFlow's the part that is not about the graph."""
    text = str(error)
    found = _OF_A_NODE.search(text)
    lines = [line.strip() for line in (found.group(1) if found else text).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
