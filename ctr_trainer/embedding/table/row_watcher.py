"""The interface of what records the creation, change and removal of a table's rows."""

from typing import Protocol

import numpy as np

from ctr_trainer.embedding.table.table_config import TableConfig


class WatchedTable(Protocol):
    """The part of a `Table` that a watcher reads."""

    config: TableConfig

    @property
    def keys(self) -> np.ndarray: ...

    def take(self, slots: np.ndarray, columns: int | None = None) -> np.ndarray: ...

    def use_of(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None: ...

    def find_and_count(self, keys: np.ndarray) -> tuple[np.ndarray, int]: ...

    def admission_counts(self) -> tuple[np.ndarray, int] | None: ...


class RowWatcher:
    """Is told of each change of a table's rows, under the table's lock. By default it ignores them."""

    def created(self, slots: np.ndarray, size: int) -> None:
        """Records that the slots, int64[U], have new rows; the table now has `size` slots."""

    def before_change(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Records that the rows at `slots`, int64[U], are about to be trained or set; -1 is skipped."""

    def before_removal(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Records that the rows at `slots`, int64[U], and their keys are about to be removed."""

    def before_clear(self, table: WatchedTable) -> None:
        """Records that all rows are about to be removed."""
