"""Which keys of a table get rows, and which rows have to go."""

import numpy as np

from ctr_trainer.embedding.table.admission import Admission
from ctr_trainer.embedding.table.row_usage import RowUsage

_NONE = np.empty(0, np.int64)


class RowLimits:
    """Decides by `min_frequency`, `max_rows` and `ttl_steps` of a TableConfig; the table carries it out.

    Args:
      config: the TableConfig.
      most_rows: a shard's share of `config.max_rows`, the limit in its place; None for `config.max_rows` itself.
      memory: where the counts lie, see `Table`.

    Attributes:
      admission: `Admission`; None if every key is let in.
      usage: `RowUsage`; None if no row is ever evicted.
      may_refuse: whether a key may get no row.
    """

    def __init__(self, config, most_rows, memory):
        self._config = config
        self._most_rows = config.max_rows if most_rows is None else most_rows
        self.admission = Admission(config.min_frequency, memory) if config.min_frequency > 1 else None
        self.usage = RowUsage(memory) if config.evicts else None
        self.may_refuse = bool(self.admission or self._most_rows)

    def admit(self, keys, counters):
        """-> those of `keys`, int64[U], distinct and without rows, that have come often enough to get one.

        Args:
          counters: `RowCounters`, in which they count as admitted.
        """
        if self.admission is None:
            return keys
        admitted = keys[self.admission.admit(keys)]
        counters.admitted += len(admitted)
        return admitted

    def surplus(self, index, wanted=_NONE, protected=_NONE):
        """-> int64[n], the slots of the rows to evict, so that `wanted`, int64[U] keys, fit in as far as possible.

        Args:
          index: the table's `Index`.
          protected: int64[P], slots that must stay; -1 is skipped.
        """
        excess = len(index) + len(wanted) - self._most_rows
        if not self._most_rows or excess <= 0:
            return _NONE
        origin = int(wanted[0]) if len(wanted) else 0
        return self.usage.lowest(index, excess, self._config.eviction, protected, origin)

    def room(self, index, count):
        """-> for how many of `count` new keys there is room."""
        return min(count, max(self._most_rows - len(index), 0)) if self._most_rows else count

    def expired(self, keys, start):
        """-> (int64[E] slots of rows that were not trained for more than `ttl_steps` steps, the slot to go on from).

        Args:
          keys, start: see `RowUsage.expired`.
        """
        if not self._config.ttl_steps:
            return _NONE, len(keys)
        return self.usage.expired(keys, start, self._config.ttl_steps)

    def clear(self):
        """Forgets how often keys came."""
        if self.admission is not None:
            self.admission.clear()
