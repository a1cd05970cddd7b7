"""The tables of a store in this process, each with a lock and the versions of its rows."""

import re
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ctr_trainer.embedding.store.versions import Versions
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import LIMITS, TableConfig
from ctr_trainer.system.files.paths import AnyPath
from ctr_trainer.system.messages.errors import UserError

_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


# Makes a table of a store from (config, most_rows), where `most_rows` replaces `config.max_rows`; see `SharedTables`.
MakeTable = Callable[[TableConfig, int | None], Table]


def tracked_table(config: TableConfig, most_rows: int | None) -> Table:
    """Makes a table that only this process uses."""
    return Table(config, True, most_rows)


class _Locked:
    """A context manager that returns a table and holds its lock."""

    def __init__(self, lock: threading.RLock, table: Table) -> None:
        self._lock = lock
        self._table = table

    def __enter__(self) -> Table:
        self._lock.acquire()
        return self._table

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class LockedTables:
    """Tables by name. They are thread-safe, because a table is used only while its lock is held.

    Attributes:
      place: (shard, shards): these tables hold the rows of `shard` among `shards` stores, which divide `max_rows`.
    """

    def __init__(self, make_table: MakeTable) -> None:
        self._make_table = make_table
        self.tables: dict[str, Table] = {}
        self.place = 0, 1
        self._versions: dict[str, Versions] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the current tables, ascending."""
        return iter(sorted(self.tables))

    def create(self, config: TableConfig) -> None:
        """Makes a table if it does not exist; raises UserError if it exists with a different configuration."""
        different = self._created(config).config.differs(config)
        if different:
            raise UserError(
                "table {} exists with {} = {}, not {}: use the same configuration, or another table name, or restart "
                "the service".format(config.name, *different)
            )

    def create_restored(self, config: TableConfig, path: AnyPath) -> None:
        """Makes a table, as `create` does, whose rows are in a snapshot in `path`.

        Its limits and optimizer settings may differ from the saved ones, but not the layout of its rows.
        """
        different = self._created(config).config.differs(config, but=(*LIMITS, "settings"))
        if different:
            field, asked, saved = different
            raise UserError(
                f"table {config.name} is configured with {field} = {asked}, but its rows in {path} were saved with "
                f"{saved}: give that value, or another model_dir"
            )

    def config(self, name: str) -> TableConfig:
        return self._there(name).config

    def versions(self, name: str) -> Versions:
        """Returns the `Versions` of a table's rows; use them while its lock is held."""
        return self._versions[name]

    def locked(self, name: str) -> _Locked:
        """Returns a reusable context manager that holds the table's lock and returns the Table."""
        table = self._there(name)
        return _Locked(self._locks[name], table)

    def mark(self, table: Table, slots: np.ndarray) -> None:
        """Sets the version of the rows at `slots`, int64[U], to a new push; -1 is skipped. Call it under the lock."""
        versions = self._versions[table.config.name]
        versions.reserve(len(table.keys))[slots[slots >= 0]] = versions.next()

    def clear(self) -> None:
        """Removes all rows and keeps the tables."""
        for name in self:
            with self.locked(name) as table:
                table.clear()
                self._versions[name].clear()

    def stats(self) -> dict[str, dict[str, dict[str, int]]]:
        return {
            "tables": {
                name: {**table.stats(), "bytes": table.nbytes + self._versions[name].nbytes}
                for name, table in list(self.tables.items())
            }
        }

    def _there(self, name: str) -> Table:
        if name not in self.tables:
            raise UserError(f"no table {name!r}; there are: {', '.join(self) or 'none'}")
        return self.tables[name]

    def _created(self, config: TableConfig) -> Table:
        """Returns the Table with the name of `config`; makes it if it does not exist."""
        if not _TABLE_NAME.fullmatch(config.name):
            raise UserError(
                f"table name {config.name!r}: expected up to 100 characters, each a letter, a digit or one of _ . -"
            )
        with self._lock:
            if config.name not in self.tables:
                self._locks[config.name] = threading.RLock()
                table = self._make_table(config, config.most_rows(*self.place))
                self._versions[config.name] = Versions()
                table.watchers.follow(self._versions[config.name].created)
                self.tables[config.name] = table
            return self.tables[config.name]
