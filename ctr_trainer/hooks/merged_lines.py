"""Whose figures a line of the training's log shows: this worker's, or on rank 0 those of all workers."""

import contextlib

from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes.background import Background

_CLOSE_SECONDS = 2.0


class OwnLines:
    """Each line is of this worker."""

    def put(self, step, sums):
        """-> the lines that are known now: a list of (step, sums, whose)."""
        return [(step, sums, "")]

    def ready(self):
        """-> the lines that have become known since, likewise; it does not wait."""
        return []

    def finish(self):
        """-> the lines that were not known yet, likewise; it waits for them."""
        return []

    def close(self):
        """Ends what is under way, also after an error."""


class MergedLines(OwnLines):
    """Rank 0's lines are of all workers; each other rank's are its own.

    The sums of a line are added up in a thread beside the next steps, so that no step waits for the slowest rank, and
    rank 0 knows the line some steps later. Only where the next line is due, and at the end, is the one before waited
    for.

    All ranks put a line at the same steps, and finish at the same one. A collective.

    Args:
      rank, size: of this worker, and how many there are.
      all_sum: f(float64[n]) -> the sum of all ranks' arrays; called in the thread, always by one at a time.
      waiting: f(what) -> context manager around a wait for the other ranks.
    """

    def __init__(self, rank, size, all_sum, waiting):
        self._rank, self._size, self._all_sum, self._waiting = rank, size, all_sum, waiting
        self._background = Background("adding up the figures of all workers")
        self._step = self._sums = None

    def put(self, step, sums):
        """As `OwnLines`."""
        lines = self.finish()
        self._step = step

        def add_up():
            self._sums = self._all_sum(sums)

        self._background.start(add_up)
        return [*lines, (step, sums, f"rank {self._rank}")] if self._rank else lines

    def ready(self):
        """As `OwnLines`."""
        return [] if self._step is None or self._background.is_busy else self.finish()

    def finish(self):
        """As `OwnLines`."""
        if self._step is None:
            return []
        step, self._step = self._step, None
        with self._waiting(f"the figures of step {step} of the other ranks"):
            self._background.wait()
        return [] if self._rank else [(step, self._sums, f"{self._size} workers")]

    def close(self):
        """As `OwnLines`: what the other ranks have no part in any more is left alone after two seconds."""
        with contextlib.suppress(UserError):
            self._background.close(_CLOSE_SECONDS)
