"""The store that the rows of an evaluation, or of a prediction, live in: never one that a training uses."""

import contextlib
import json
import socket

import numpy as np

from ctr_trainer import distributed
from ctr_trainer.embedding.local_store import LocalStore
from ctr_trainer.embedding.memory_limits import tightest
from ctr_trainer.embedding.shared_memory import SharedMemory
from ctr_trainer.embedding.shared_table import SharedTables
from ctr_trainer.errors import UserError

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
    if not SharedMemory.is_possible() or not _is_shared_anywhere():
        yield EvaluationStore()
        return
    memory = SharedMemory() if distributed.local_rank() == 0 else None
    address = _of_this_host(memory and memory.address)
    memory = memory or SharedMemory(address)
    with contextlib.closing(memory):
        yield EvaluationStore(memory)
        # The memory goes with the rank that made it, and its others may still be reading.
        distributed.barrier("evaluated_rows_close")


def _is_shared_anywhere():
    return distributed.all_sum(np.int64(distributed.local_size() > 1), "ranks_beside_others") > 0


def _of_this_host(address):
    """-> the `address` that the first rank of this host gave. A collective."""
    line = json.dumps({"host": socket.gethostname(), "address": address}) + "\n"
    lines = distributed.all_gather(np.frombuffer(line.encode(), np.uint8), "evaluation_hosts").tobytes()
    ranks = [json.loads(line) for line in lines.decode().splitlines()][: distributed.rank() + 1]
    # The last one up to this rank: horovodrun may have been given one machine under two names.
    return [rank["address"] for rank in ranks if rank["address"] and rank["host"] == socket.gethostname()][-1]


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
