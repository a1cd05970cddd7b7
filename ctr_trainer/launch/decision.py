"""Decides whether the workers are started again."""

from ctr_trainer.launch.ending import Kind


class Patience:
    """Counts the restarts since the last new checkpoint.

    Args:
      most: restarts in a row without a new checkpoint.
    """

    def __init__(self, most):
        self._most = most
        self._fruitless, self._failure = 0, ""

    def new_checkpoint(self):
        """Starts the count anew: the training gets on."""
        self._fruitless, self._failure = 0, ""

    def why_not(self, ending):
        """Counts a restart. -> why the workers are not started again, a sentence; "" if they are

        Args:
          ending: `Ending` that is no `FINISHED`.
        """
        if ending.kind is Kind.REFUSED:
            return "Not started again: the same flags and data would end the same way"
        if ending.kind is Kind.FAILED and ending.reason == self._failure:
            return "Not started again: the start before it ended with the same error, and no checkpoint was written"
        self._failure = ending.reason if ending.kind is Kind.FAILED else ""
        self._fruitless += 1
        if self._fruitless > self._most:
            return f"Not started again: --max_restarts={self._most} restarts in a row have brought no new checkpoint"
        return ""
