"""The errors a user is meant to read."""


class UserError(Exception):
    """Something the user can mend: a flag, a file, a row, a service that is gone.

    The command line prints its message without a traceback, so the message says what was wrong, where
    (file, row, column, value) and what to do.
    """


class ServiceLost(UserError):
    """The embedding service does not answer, or was restarted: the rows since the last checkpoint are gone."""
