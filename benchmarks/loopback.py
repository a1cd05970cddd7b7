"""Measures, for `service.py`, requests over loopback to a service on one core: pulls, syncs, demo traffic.

The demo traffic is a training without the dense tower, with real batches, caches and syncs.
"""

import concurrent.futures
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil

from ctr_trainer import BatchReader, RunConfig
from ctr_trainer.embedding.index.key_kernels import distinct
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalService, LocalServices
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.store.versions import ABSENT
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS, RowwiseAdagrad
from ctr_trainer.system.files.lease import Owner

DISTRIBUTIONS, ZIPF = ("uniform", "zipf"), 1.2
CONFIG = TableConfig("bench", (16,), (0.01,), RowwiseAdagrad(initial_accumulator=0.1))
LOAD_ROWS, REQUEST_ROWS, BATCHES, CLIENTS = 1 << 18, 20_000, 32, 2
SYNCS = 300  # Syncs at half load, from which the percentiles are computed.
TIMEOUT_S = 60
LEASE = Owner.new("benchmark")
# Steps of each worker before the measurement, during which the service loads its kernels and the caches fill.
WARMUP_STEPS, BATCH_SIZE = 60, 1024
PREFETCH_BATCHES = RunConfig().prefetch_batches
# The demo's model: DeepFM, an embedding and a linear weight per key; 34 floats per row in Adagrad, 19 row-wise.
DIMS, SCALES, ACCUMULATOR = (16, 1), (0.01, 0.0), 1e-3


def key_of(ranks: np.ndarray) -> np.ndarray:
    """Maps ranks int64[n] from 1 to keys int64[n] that are spread over all 64 bits."""
    return ranks * np.int64(-7046029254386353131)  # odd, so a bijection of 64-bit integers; 0 stays 0


def draw(rng: np.random.Generator, distribution: str, rows: int, count: int) -> np.ndarray:
    """Returns int64[count], ranks from 1 to `rows`."""
    if distribution == "uniform":
        return rng.integers(1, rows + 1, count)
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        more = rng.zipf(ZIPF, 2 * count)
        drawn = np.append(drawn, more[more <= rows])
    return drawn[:count]


def draw_distinct(rng: np.random.Generator, distribution: str, rows: int, count: int) -> np.ndarray:
    """Returns int64[count], distinct ranks in random order."""
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        drawn = np.unique(np.append(drawn, draw(rng, distribution, rows, count)))
    return rng.permutation(drawn)[:count]


def blocks(rows: int) -> Iterator[np.ndarray]:
    """Yields the keys of all ranks in blocks of LOAD_ROWS."""
    for first in range(1, rows + 1, LOAD_ROWS):
        yield key_of(np.arange(first, min(first + LOAD_ROWS, rows + 1)))


def connect(service: LocalService) -> ServiceClient:
    """Returns a client that uses a socket, as for another host; all clients belong to one training."""
    return ServiceClient([service.address], TIMEOUT_S, ClientSecurity(service.token), LEASE, by_socket=True)


def cpu_seconds(service: LocalService) -> float:
    """Returns the CPU time that the service has used."""
    return sum(psutil.Process(service.pid).cpu_times()[:2])


class Worker:
    """A client that pulls and syncs its own batches of ranks, and remembers the versions of its rows.

    `came` is the number of rows that syncs have returned.
    """

    def __init__(self, service: LocalService, name: str, batches: list[np.ndarray], rows: int) -> None:
        self.client = connect(service)
        self.client.create_table(CONFIG)
        self.batches, self.came = batches, 0
        self._name, self._sequence = name, 0
        self._known = np.zeros(rows + 1, np.uint32)
        self._deltas = np.full((len(batches[0]), CONFIG.width), 1e-6, np.float32)

    def pull(self, ranks: np.ndarray) -> None:
        self.client.pull("bench", key_of(ranks), np.full(len(ranks), ABSENT, np.uint32))

    def sync(self, ranks: np.ndarray) -> None:
        self._sequence += 1
        known = self._known[ranks]
        newer = self.client.sync("bench", key_of(ranks), self._deltas, self._name, self._sequence, known)
        self._known[ranks] = newer.versions
        self.came += len(newer.positions)


def measure(rows: int, seconds: float, directory: str, core: int) -> tuple[float, dict[str, dict[str, float]]]:
    """Returns the index bytes per row of a service, and its rates and percentiles by distribution."""
    results: dict[str, dict[str, float]] = {}
    with LocalServices(1, directory, TIMEOUT_S).running({core}) as (service,):
        loader = connect(service)
        loader.create_table(CONFIG)
        zeros = np.zeros((LOAD_ROWS, CONFIG.width), np.float32)
        for number, keys in enumerate(blocks(rows)):
            loader.sync("bench", keys, zeros[: len(keys)], "loader", number)
        table = loader.stats()["tables"]["bench"]
        assert table["rows"] == rows, table
        loader.close()
        for distribution in DISTRIBUTIONS:
            rng, workers, size = np.random.default_rng(2), [], min(REQUEST_ROWS, rows // 4)
            for number in range(CLIENTS):
                batches = [draw_distinct(rng, distribution, rows, size) for _ in range(BATCHES)]
                workers.append(Worker(service, f"{distribution}{number}", batches, rows))
            figures = results[distribution] = {}
            for op in ("pull", "sync"):
                figures |= saturate(op, service, workers, seconds)
            figures |= at_half_load(workers, figures["sync_rows_per_sec"] / 2)
            for worker in workers:
                worker.client.close()
    return table["bytes"] / rows - 4 * CONFIG.width, results


def repeated(what: Callable[[np.ndarray], object], batches: list[np.ndarray], seconds: float) -> int:
    """Calls `what` with the batches in turn for `seconds`, and returns their number of keys."""
    done, end, in_turn = 0, time.perf_counter() + seconds, itertools.cycle(batches)
    while time.perf_counter() < end:
        batch = next(in_turn)
        what(batch)
        done += len(batch)
    return done


def saturate(op: str, service: LocalService, workers: list[Worker], seconds: float) -> dict[str, float]:
    """Returns rows/s and rows per core-second of an operation that all workers request continuously."""
    for worker in workers:
        for ranks in worker.batches:
            getattr(worker, op)(ranks)
        worker.came = 0

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as threads:
        used, begin = cpu_seconds(service), time.perf_counter()
        rows = sum(threads.map(lambda worker: repeated(getattr(worker, op), worker.batches, seconds), workers))
        wall, used = time.perf_counter() - begin, cpu_seconds(service) - used
    figures = {f"{op}_rows_per_sec": rows / wall, f"{op}_rows_per_core_sec": rows / used}
    if op == "sync":
        figures["sync_share_of_rows_sent_back"] = sum(worker.came for worker in workers) / rows
    return figures


def at_half_load(workers: list[Worker], rows_per_sec: float) -> dict[str, float]:
    """Returns latency percentiles, in ms, of syncs at a fixed rate, measured from their due times."""
    interval = len(workers[0].batches[0]) / rows_per_sec
    begin = time.perf_counter() + interval

    def ask(number: int) -> list[float]:
        worker, latencies = workers[number], []
        for i in range(number, SYNCS, len(workers)):
            due = begin + i * interval
            time.sleep(max(due - time.perf_counter(), 0))
            worker.sync(worker.batches[i % len(worker.batches)])
            latencies.append(time.perf_counter() - due)
        return latencies

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as threads:
        latencies = [each for part in threads.map(ask, range(len(workers))) for each in part]
    return {f"sync_p{p}_ms": 1e3 * float(np.percentile(latencies, p)) for p in (50, 95, 99)}


def traffic(
    data: pathlib.Path, core: int, optimizer: str, sync_steps: int, workers: int, workers_a_host: int = 1
) -> dict[str, float]:
    """Returns the core-seconds of the service per million examples, and bytes and misses per example.

    The workers take turns in this process, so that the copy of a host needs no shared memory. The service runs on
    `core`; the workers of a host, `workers_a_host` of them, train one copy of the rows.
    """
    readers = [BatchReader(data, BATCH_SIZE, rank, workers, epochs=1) for rank in range(workers)]
    table, hosts = readers[0].spec.tables[0], workers // workers_a_host
    config = TableConfig(table.name, DIMS, SCALES, ROW_OPTIMIZERS[optimizer](initial_accumulator=ACCUMULATOR))
    with LocalServices(1, data.parent, TIMEOUT_S).running({core}) as (service,):
        clients = [connect(service) for _ in range(hosts)]
        caches = [RowCopies(client, config, f"host{host}", Group(groups=hosts)) for host, client in enumerate(clients)]
        steps = [_steps(caches[rank // workers_a_host], reader, table.name) for rank, reader in enumerate(readers)]
        examples, before = 0, {}
        for step, sizes in enumerate(zip(*steps, strict=True), start=1):
            for host, cache in enumerate(caches):
                if (step + host * sync_steps // hosts) % sync_steps == 0:
                    cache.sync()
            examples += sum(sizes)
            if step == WARMUP_STEPS:
                examples, before = 0, _counters(service, caches)
        after = _counters(service, caches)
        for client in clients:
            client.close()
    per_example = {name: (after[name] - before[name]) / examples for name in after}
    used = {f"core_sec_per_million_examples_sync_{sync_steps}": 1e6 * per_example.pop("core_sec")}
    return used | {f"{name}_per_example_sync_{sync_steps}": value for name, value in per_example.items()}


def _counters(service: LocalService, caches: list[RowCopies]) -> dict[str, float]:
    names = ("bytes_synced", "rows_pulled", "misses", "pulled_ahead")
    return {"core_sec": cpu_seconds(service)} | {name: sum(getattr(cache, name) for cache in caches) for name in names}


def _steps(cache: RowCopies, reader: BatchReader, table: str) -> Iterator[int]:
    """Yields the size of each batch after its step, with constant gradients as large as in a click model.

    The rows of several batches are looked up ahead, as in the input pipeline.
    """
    batches = iter(reader)
    while group := list(itertools.islice(batches, PREFETCH_BATCHES)):
        lookups = [Lookup(batch.keys[table]) for batch in group]
        since = cache.pull_ahead(distinct([lookup.unique for lookup in lookups]))
        for batch, lookup in zip(group, lookups, strict=True):
            slots = cache.find_or_create(lookup.unique, since)
            gradients = [np.full((len(slots), dim), 1e-4, np.float32) for dim in DIMS]
            cache.apply_gradients(lookup.unique, slots, gradients, 0.05)
            yield batch.size
