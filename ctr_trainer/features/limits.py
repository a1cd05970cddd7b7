"""Limits of a table's rows."""

import dataclasses

from ctr_trainer.messages.errors import UserError

_EVICTIONS = ("lru", "lfu")
_MOST_FREQUENCY = 255


@dataclasses.dataclass(frozen=True)
class TableLimits:
    """Which keys of one table have rows; see `embedding.table.table_config.TableConfig` for each.

    Attributes:
      table: name of the table, `dim16` for the features of dim 16.

    Raises:
      UserError: a number is out of range, or the eviction is unknown.
    """

    table: str
    min_frequency: int = 0
    max_rows: int = 0
    eviction: str = "lru"
    ttl_steps: int = 0

    def __post_init__(self):
        for key in ("min_frequency", "max_rows", "ttl_steps"):
            if getattr(self, key) < 0:
                raise UserError(f"{key} {getattr(self, key)} is negative; 0 sets no limit")
        if self.min_frequency > _MOST_FREQUENCY:
            raise UserError(f"min_frequency {self.min_frequency} is above {_MOST_FREQUENCY}")
        if self.eviction not in _EVICTIONS:
            raise UserError(f"eviction {self.eviction!r} is not one of {', '.join(_EVICTIONS)}")
