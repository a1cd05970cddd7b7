"""Measures the CPU seconds that a worker and a shard of the embedding service need per row and per request."""

import contextlib
import statistics
import time
from collections.abc import Sequence

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.lease import Lease
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.table.shared_table import SharedTable
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS

# The table has the rows of this many batches, so that the rows of a batch are not in the core's cache.
_BATCHES = 24
_SIZES = (256, 16384)
_WAIT_SECONDS = 60.0
_OVERHEADS = 9


def lock_seconds(dims: Sequence[int], optimizer: str, rows: float) -> float:
    """Returns the seconds for which the update of a batch's rows holds the lock of a table.

    It is the median of `_BATCHES` updates in a table that no other process uses.

    Args:
      dims: `TableConfig.dims`.
      optimizer: name of the optimizer of the rows.
      rows: distinct rows of a batch.
    """
    config = _config("rows", dims, optimizer)
    table, count = SharedTable(config, True, SharedMemory().under(config.name)), max(int(rows), 1)
    slots = np.random.default_rng(0).permutation(table.find_or_create(np.arange(1, _BATCHES * count + 1)))
    gradients = [np.full((count, dim), 1e-3, np.float32) for dim in dims]
    held: list[float] = []
    for batch in slots.reshape(_BATCHES, count):
        before = table.lock_times.held
        table.apply_gradients(batch, gradients, 0.01)
        held.append(table.lock_times.held - before)
    return statistics.median(held)


def measure(dims: Sequence[int], optimizer: str, directory: str, repeats: int = 10) -> dict[str, float]:
    """Measures a shard, and the caches of two workers in this process that train and sync the same rows.

    Each operation is measured with two numbers of rows n; its cost is the line `request + n row` through both points.

    Args:
      dims: `TableConfig.dims`.
      optimizer: name of the optimizer of the rows.
      directory: directory of the shard's log.
      repeats: measurements with each number of rows, after a warm-up.

    Returns:
      dict of `push_seconds`, `request_seconds`, `shard_push_seconds`, `shard_pull_seconds` and `shard_request_seconds`,
      see `Costs`.
    """
    log = f"{directory}/service.log"
    service = LocalService(directory, log, _WAIT_SECONDS)
    with service, contextlib.ExitStack() as stack:
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


def _config(name: str, dims: Sequence[int], optimizer: str) -> TableConfig:
    return TableConfig(name, tuple(dims), (0.01,) * len(dims), ROW_OPTIMIZERS[optimizer]())


def _measure(
    client: ServiceClient, address: str, dims: Sequence[int], optimizer: str, rows: int, repeats: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the (worker, shard) seconds of a sync of `rows` rows, and of a pull."""
    config = _config(f"rows{rows}", dims, optimizer)
    one, other = (RowCache(client, config, f"probe{number}") for number in (0, 1))
    keys = np.arange(1, rows + 1, dtype=np.int64)
    gradients = [np.full((rows, dim), 1e-3, np.float32) for dim in dims]
    syncs, pulls = [], []

    def clocks() -> np.ndarray:
        return np.array([time.process_time(), client.stats()["services"][address]["cpu_seconds"]])

    asked = [clocks() for _ in range(_OVERHEADS + 1)]
    overhead = np.median(np.diff(asked, axis=0), axis=0)  # Reading the shard's clock is a request as well.
    for number in range(repeats + 1):
        for cache in (
            other,
            one,
        ):  # The other cache changes all rows, so that a sync brings them back.
            cache.apply_gradients(cache.find_or_create(keys), gradients, 0.01)
            start = clocks()
            cache.sync()
            synced = clocks() - start - overhead
        other.sync()
        other.sync()  # After two windows without a step, a lookup has to check its rows.
        start = clocks()
        other.find_or_create(keys)
        pulled = clocks() - start - overhead
        if number:
            syncs.append(synced)
            pulls.append(pulled)
    return np.median(syncs, axis=0), np.median(pulls, axis=0)


def _line(small: float, large: float) -> tuple[float, float]:
    """Returns the seconds (of a row, of a request), at least 0, from the seconds of both sizes."""
    row = max((large - small) / (_SIZES[1] - _SIZES[0]), 0.0)
    return float(row), float(max(small - _SIZES[0] * row, 0.0))
