"""What rows and requests cost a worker and a shard of the lookup service, in CPU seconds."""

import contextlib
import statistics
import time

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.lease import Lease
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.table.shared_table import SharedTable
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.row_cache import RowCache

# The table has this many times the rows of a batch, so that they are not in the core's cache.
_BATCHES = 24
_SIZES = (256, 16384)
_WAIT_SECONDS = 60.0
_OVERHEADS = 9


def lock_seconds(dims, optimizer, rows):
    """Steps the rows of batches in a table that no other process has open.

    Args:
      dims: of a row, as `TableConfig.dims`.
      optimizer: of the rows.
      rows: distinct rows of a batch.

    Returns:
      seconds for which one step of a batch holds the lock, the median of `_BATCHES` steps.
    """
    config = TableConfig("rows", tuple(dims), (0.01,) * len(dims), optimizer)
    table, rows = SharedTable(config, True, SharedMemory().under(config.name)), max(int(rows), 1)
    slots = np.random.default_rng(0).permutation(table.find_or_create(np.arange(1, _BATCHES * rows + 1)))
    gradients, held = [np.full((rows, dim), 1e-3, np.float32) for dim in dims], []
    for batch in slots.reshape(_BATCHES, rows):
        before = table.lock_times.held
        table.apply_gradients(batch, gradients, 0.01)
        held.append(table.lock_times.held - before)
    return statistics.median(held)


def measure(dims, optimizer, directory, repeats=10):
    """Starts a shard, and has two workers' caches in this process train and sync the same rows.

    Of each operation there are two sizes n; its cost is taken as `request + n row`, a line through both.

    Args:
      dims: of a row, as `TableConfig.dims`.
      optimizer: of the rows.
      directory: for the shard's log.
      repeats: of each size, after one that does not count.

    Returns:
      dict of `push_seconds`, `request_seconds`, `shard_push_seconds`, `shard_pull_seconds`, `shard_request_seconds`, as
      `Costs` has them.
    """
    log = f"{directory}/service.log"
    with LocalService(directory, log, _WAIT_SECONDS) as service, contextlib.ExitStack() as stack:
        client = stack.enter_context(
            contextlib.closing(
                ServiceClient([service.address], _WAIT_SECONDS, ClientSecurity(service.token), Lease.new(directory))
            )
        )
        sync, pull = zip(*(_measure(client, service.address, dims, optimizer, n, repeats) for n in _SIZES), strict=True)
    worker_row, worker_request = _line(*(worker for worker, _ in sync))
    shard_row, shard_request = _line(*(shard for _, shard in sync))
    pull_row, _ = _line(*(shard for _, shard in pull))
    return {
        "push_seconds": worker_row,
        "request_seconds": worker_request,
        "shard_push_seconds": shard_row,
        "shard_pull_seconds": pull_row,
        "shard_request_seconds": shard_request,
    }


def _measure(client, address, dims, optimizer, rows, repeats):
    """-> ((worker, shard) seconds of a sync of so many rows, the same of a pull)."""
    config = TableConfig(f"rows{rows}", tuple(dims), (0.01,) * len(dims), optimizer)
    one, other = (RowCache(client, config, f"probe{number}") for number in (0, 1))
    keys = np.arange(1, rows + 1, dtype=np.int64)
    gradients = [np.full((rows, dim), 1e-3, np.float32) for dim in dims]
    syncs, pulls = [], []

    def clocks():
        return np.array([time.process_time(), client.stats()["services"][address]["cpu_seconds"]])

    asked = [clocks() for _ in range(_OVERHEADS + 1)]
    overhead = np.median(np.diff(asked, axis=0), axis=0)  # Of asking for the clocks, which is a request too.
    for number in range(repeats + 1):
        for cache in (other, one):  # So that all rows of each come back: the other has changed them.
            cache.apply_gradients(cache.find_or_create(keys), gradients, 0.01)
            start = clocks()
            cache.sync()
            synced = clocks() - start - overhead
        other.sync()
        other.sync()  # Two windows without a step: its rows are to be checked.
        start = clocks()
        other.find_or_create(keys)
        pulled = clocks() - start - overhead
        if number:
            syncs.append(synced)
            pulls.append(pulled)
    return np.median(syncs, axis=0), np.median(pulls, axis=0)


def _line(small, large):
    """-> (seconds a row, seconds a request) from the seconds of both sizes; neither below 0."""
    row = max((large - small) / (_SIZES[1] - _SIZES[0]), 0.0)
    return float(row), float(max(small - _SIZES[0] * row, 0.0))
