"""The one error a user is meant to read."""


class UserError(Exception):
    """Something the user can mend: a flag, a file, a row, a service that is gone.

    The command line prints its message without a traceback, so the message says what was wrong, where
    (file, row, column, value) and what to do.
    """
