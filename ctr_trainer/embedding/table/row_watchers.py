"""Who has to know which rows of a table come, change and go."""

import numpy as np

from ctr_trainer.embedding.table.changes import Changes
from ctr_trainer.embedding.table.published_rows import PublishedRows


class RowWatchers:
    """What a table tells of its rows, and to whom: its next snapshot, its publication, its limits, its followers.

    Caveat: use it under the table's lock only.

    Args:
      memory: where what they keep lies, see `Table`.
      tracked: whether to keep `changes`.
      usage: `RowUsage`; None if no row is ever evicted.

    Attributes:
      changes: `Changes` since the last snapshot; None if they are not kept.
      published: `PublishedRows`; None until `keep_published`.
    """

    def __init__(self, memory, tracked, usage):
        self._memory, self._usage = memory, usage
        self.changes, self.published = Changes(memory) if tracked else None, None
        self._told = [self.changes] if tracked else []
        self._followers = [each for each in (self.changes, usage) if each is not None]

    def follow(self, follower):
        """Has `follower.created(slots int64[U], size)` called whenever slots, new or used before, get new rows."""
        self._followers.append(follower)

    def keep_published(self):
        """Has `published` kept from now on. If it is kept already, this does nothing."""
        if self.published is None:
            self.published = PublishedRows(self._memory)
            self._told.append(self.published)
            self.follow(self.published)

    def created(self, first, size, reused):
        """Tells that the slots from `first` on, and those in `reused`, int64[n], got new rows; there are `size` now."""
        if self._followers:
            slots = np.concatenate([np.arange(first, size), reused])
            for follower in self._followers:
                follower.created(slots, size)

    def before_change(self, table, slots):
        """Tells that the rows at `slots`, int64[U], distinct, are about to be trained or set; -1 is skipped."""
        for each in self._told:
            each.before_change(table, slots)
        if self._usage is not None:
            self._usage.trained(slots, len(table.keys))

    def before_removal(self, table, slots):
        """Tells that the rows at `slots`, int64[U], and their keys are about to be removed."""
        for each in self._told:
            each.before_removal(table, slots)

    def before_clear(self, table):
        """Tells that all rows are about to be removed."""
        for each in self._told:
            each.before_clear(table)
