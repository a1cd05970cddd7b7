"""The store that the rows of an evaluation, or of a prediction, live in: never one that a training uses."""

import contextlib
import socket

from ctr_trainer.embedding.memory.memory_limits import tightest
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.shared_table import SharedTables
from ctr_trainer.estimator.host_memory import any_host_has_several_workers, open_host_memory
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed

# Of a row, besides its floats: its key, its place in the index, its version.
_BYTES_BESIDE_ROW = 8 + 5 + 4


class EvaluationStore:
    """Rows of a checkpoint, once on each host: in the process of a lone rank, else in memory that its ranks share.

    Every host reads the checkpoint's files itself.

    Attributes:
      store: a `LocalStore`.
    """

    def __init__(self, memory=None):
        """`memory`: `SharedMemory` of the ranks of this host; None if each rank has rows of its own."""
        self._fills = memory is None or memory.is_own
        self.store = LocalStore() if memory is None else LocalStore(SharedTables(memory))

    def restore(self, checkpoint):
        """Reads the rows of the store's tables, on one rank of each host. A collective.

        Raises:
          UserError: the rows do not fit into memory, or a file of them cannot be read.
        """
        if self._fills:
            files = [entry for entry in checkpoint.tables if entry["table"] in self.store.tables]
            _refuse_too_many(self.store, files, checkpoint.path)
            self.store.restore(checkpoint.path, files)
        distributed.barrier("evaluated_rows_restored")


@contextlib.contextmanager
def open_evaluation_store():
    """Gives an `EvaluationStore` without tables. A collective."""
    if not SharedMemory.is_possible() or not any_host_has_several_workers():
        yield EvaluationStore()
        return
    with open_host_memory() as memory:
        yield EvaluationStore(memory)


def _refuse_too_many(store, files, path):
    rows = {}
    for entry in files:
        if entry.get("kind", "full") == "full":
            rows[entry["table"]] = rows.get(entry["table"], 0) + entry["rows"]
    needed = sum(n * (4 * store.tables[name].config.width + _BYTES_BESIDE_ROW) for name, n in rows.items())
    limit = tightest()
    if needed > limit.free:
        raise UserError(
            f"{path}: its {sum(rows.values())} rows take at least {needed / 1e9:.2f} GB, and {limit.name} "
            f"({socket.gethostname()}) has {limit.free / 1e9:.2f} GB of memory left. An evaluation reads all rows on "
            "each of its hosts: run it where there is more memory"
        )
