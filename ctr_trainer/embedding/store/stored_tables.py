"""The tables of a store in this process, and the versions of their rows."""

import re
import threading
from collections.abc import Iterator

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.versions import Versions
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import LIMITS, TableConfig
from ctr_trainer.system.files.paths import AnyPath
from ctr_trainer.system.messages.errors import UserError

_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class StoredTables:
    """Tables by name; see `LocalStore` for the arguments.

    Attributes:
      place: (shard, shards): these tables hold the rows of `shard` among `shards` stores, which divide `max_rows`.
    """

    def __init__(self, memory: SharedMemory | None, is_published: bool) -> None:
        self._memory, self._is_published = memory, is_published
        self.by_name: dict[str, Table] = {}
        self.place = 0, 1
        self._versions: dict[str, Versions] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Table:
        if name not in self.by_name:
            raise UserError(f"no table {name!r}; there are: {', '.join(sorted(self.by_name)) or 'none'}")
        return self.by_name[name]

    def __iter__(self) -> Iterator[Table]:
        """Yields the current tables in the order of their names."""
        return iter([self.by_name[name] for name in sorted(self.by_name)])

    def create(self, config: TableConfig) -> None:
        """Makes a table if it does not exist; raises UserError if it exists with a different configuration."""
        different = self._created(config).config.differs(config)
        if different:
            raise UserError(
                "table {} exists with {} = {}, not {}: use the same configuration, or another table name, or restart "
                "the service".format(config.name, *different)
            )

    def create_restored(self, config: TableConfig, path: AnyPath) -> None:
        """Makes a table for rows saved in `path`; only its limits and optimizer settings may differ."""
        different = self._created(config).config.differs(config, but=(*LIMITS, "settings"))
        if different:
            field, asked, saved = different
            raise UserError(
                f"table {config.name} is configured with {field} = {asked}, but its rows in {path} were saved with "
                f"{saved}: give that value, or another model_dir"
            )

    def versions(self, table: Table) -> Versions:
        """Returns the `Versions` of a table's rows; use them while its lock is held."""
        return self._versions[table.config.name]

    def stats(self) -> dict[str, dict[str, dict[str, int]]]:
        return {
            "tables": {
                name: {**table.stats(), "bytes": table.nbytes + self._versions[name].nbytes}
                for name, table in list(self.by_name.items())
            }
        }

    def _created(self, config: TableConfig) -> Table:
        if not _TABLE_NAME.fullmatch(config.name):
            raise UserError(
                f"table name {config.name!r}: expected up to 100 characters, each a letter, a digit or one of _ . -"
            )
        with self._lock:
            if config.name not in self.by_name:
                self.by_name[config.name] = self._made(config)
            return self.by_name[config.name]

    def _made(self, config: TableConfig) -> Table:
        memory = self._memory and self._memory.under(config.name)
        most_rows = config.most_rows(*self.place)
        table = Table(config, True, most_rows, memory)
        if self._is_published:
            table.keep_published()
        versions = self._versions[config.name] = Versions()
        table.watchers.append(versions)
        return table
