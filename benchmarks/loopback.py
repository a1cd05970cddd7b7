"""The requests of `service.py` to a service on one core: pulls, pushes and syncs over loopback, and the demo's traffic.

The demo's traffic is a training without the dense tower: real batches, caches and syncs.
"""

import concurrent.futures
import itertools
import os
import pathlib
import threading
import time

import numpy as np
import psutil

from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.index.key_kernels import distinct
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.lease import Lease
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS
from ctr_trainer.settings.run_config import RunConfig

TIMEOUT_S = 60
CLIENTS = 2
LEASE = Lease.new("benchmark")
BATCH_SIZE = 1024
PREFETCH_BATCHES = RunConfig().prefetch_batches
# Steps of each worker before the measurement, in which the service loads its kernels and the caches fill.
WARMUP_STEPS = 60
SPEC = pathlib.Path(__file__).parents[1] / "configs" / "features" / "demo.toml"
# The demo's model: DeepFM, an embedding and a linear weight a key; Adagrad's rows are 34 floats, row-wise Adagrad's 19.
DIMS, SCALES, ACCUMULATOR = (16, 1), (0.01, 0.0), 1e-3
OPTIMIZERS = ("rowwise_adagrad", "adagrad")


def start(directory: str, core: int) -> LocalService:
    """Returns a service whose threads all run on `core`."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # The child inherits it.
    try:
        return LocalService(directory, os.path.join(directory, "log"), TIMEOUT_S)
    finally:
        os.sched_setaffinity(0, own)


def connect(service: LocalService) -> ServiceClient:
    """Returns a client that sends requests as to another host; all clients belong to one training."""
    return ServiceClient([service.address], TIMEOUT_S, ClientSecurity(service.token), LEASE, by_socket=True)


def cpu_seconds(service: LocalService) -> float:
    """Returns the processor time that the service has used."""
    times = psutil.Process(service.pid).cpu_times()
    return times.user + times.system


class Worker:
    """A client that pulls, pushes and syncs its own batches, and remembers the versions of its rows."""

    def __init__(self, service, name, batches, rows, bench):
        self.client = connect(service)
        self.client.create_table(bench.CONFIG)
        self.batches = [(ranks, bench.key_of(ranks)) for ranks in batches]
        self._name, self._sequence = name, 0
        self._known = np.zeros(rows + 1, np.uint32)
        self._deltas = np.full((bench.REQUEST_ROWS, bench.CONFIG.width), 1e-6, np.float32)
        self.came = 0

    def pull(self, ranks, keys):
        self.client.pull("bench", keys)

    def push(self, ranks, keys):
        self._sequence += 1
        self.client.push("bench", keys, self._deltas, self._name, self._sequence)

    def sync(self, ranks, keys):
        self._sequence += 1
        newer = self.client.sync("bench", keys, self._deltas, self._name, self._sequence, self._known[ranks])
        self._known[ranks] = newer.versions
        self.came += len(newer.positions)


def measure(rows, flags, directory, core, bench):
    """Returns rates and percentiles by distribution, and the service's `index_bytes_per_row`."""
    results = {}
    with start(directory, core) as service:
        loader = connect(service)
        loader.create_table(bench.CONFIG)
        zeros = np.zeros((bench.LOAD_ROWS, bench.CONFIG.width), np.float32)
        for number, first in enumerate(range(1, rows + 1, bench.LOAD_ROWS)):
            keys = bench.key_of(np.arange(first, min(first + bench.LOAD_ROWS, rows + 1)))
            loader.push("bench", keys, zeros[: len(keys)], "loader", number)
        table = loader.stats()["tables"]["bench"]
        assert table["rows"] == rows, table
        results["index_bytes_per_row"] = table["bytes"] / rows - 4 * bench.CONFIG.width
        for distribution in ("uniform", "zipf"):
            rng = np.random.default_rng(2)
            workers = []
            for number in range(CLIENTS):
                size = min(bench.REQUEST_ROWS, rows // 4)
                batches = [bench.draw_distinct(rng, distribution, rows, size) for _ in range(bench.BATCHES)]
                workers.append(Worker(service, f"{distribution}{number}", batches, rows, bench))
                workers[-1]._deltas = workers[-1]._deltas[:size]
            figures = results[distribution] = {}
            for op in ("pull", "push", "sync"):
                figures.update(saturate(op, service, workers, flags.seconds))
            figures.update(at_half_load(workers, figures["sync_rows_per_sec"] / 2, flags.syncs))
            for worker in workers:
                worker.client.close()
        loader.close()
    return results


def saturate(op, service, workers, seconds):
    """Returns rows/s and rows per core-second of an operation that all workers request without a pause."""
    for worker in workers:
        for batch in worker.batches:
            getattr(worker, op)(*batch)
        worker.came = 0
    barrier = threading.Barrier(len(workers) + 1)

    def ask(worker):
        barrier.wait(TIMEOUT_S)
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            ranks, keys = worker.batches[done % len(worker.batches)]
            getattr(worker, op)(ranks, keys)
            done += 1
        return done * len(keys)

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as threads:
        futures = [threads.submit(ask, worker) for worker in workers]
        used, begin = cpu_seconds(service), time.perf_counter()
        barrier.wait(TIMEOUT_S)
        rows = sum(future.result() for future in futures)
        wall, used = time.perf_counter() - begin, cpu_seconds(service) - used
    figures = {f"{op}_rows_per_sec": rows / wall, f"{op}_rows_per_core_sec": rows / used}
    if op == "sync":
        figures["sync_share_of_rows_sent_back"] = sum(worker.came for worker in workers) / rows
    return figures


def at_half_load(workers, rows_per_sec, syncs):
    """Returns latency percentiles, in ms, of syncs at a fixed rate, measured from the time at which they are due."""
    interval = len(workers[0].batches[0][1]) / rows_per_sec
    begin = time.perf_counter() + interval

    def ask(number):
        worker, latencies = workers[number], []
        for i in range(number, syncs, len(workers)):
            due = begin + i * interval
            time.sleep(max(due - time.perf_counter(), 0))
            worker.sync(*worker.batches[i % len(worker.batches)])
            latencies.append(time.perf_counter() - due)
        return latencies

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as threads:
        latencies = [each for part in threads.map(ask, range(len(workers))) for each in part]
    return {f"sync_p{p}_ms": 1e3 * float(np.percentile(latencies, p)) for p in (50, 95, 99)}


def write_data(rows, directory):
    """Writes the demo's data."""
    convert("synthetic", None, directory / "data", FeatureSpec.load(SPEC), rows=rows, seed=1, progress=False)


def measure_demo(workers, directory, cores):
    """Returns, by optimizer, core-seconds per million examples at N = 1 and 30, and bytes and misses per example."""
    figures = {}
    for optimizer in OPTIMIZERS:
        figures[optimizer] = {}
        for sync_steps in (1, 30):
            figures[optimizer].update(_train(directory, workers, optimizer, sync_steps, cores))
    return figures


def measure_demo_of_hosts(hosts, workers_a_host, directory, cores):
    """Returns the figures of row-wise Adagrad at N = 30 for workers that train one copy of the rows on each host."""
    return _train(directory, hosts * workers_a_host, OPTIMIZERS[0], 30, cores, workers_a_host)


def _train(directory, workers, optimizer, sync_steps, cores, workers_a_host=1):
    """Trains with workers that take turns in this process, so that the copy of a host needs no shared memory."""
    data, hosts = directory / "data" / "train", workers // workers_a_host
    readers = [BatchReader(data, BATCH_SIZE, rank, workers, epochs=1) for rank in range(workers)]
    table = readers[0].spec.tables[0]
    config = TableConfig(table.name, DIMS, SCALES, ROW_OPTIMIZERS[optimizer](initial_accumulator=ACCUMULATOR))
    with start(str(directory), cores[0]) as service:
        clients = [connect(service) for _ in range(hosts)]
        caches = [RowCache(client, config, f"host{host}") for host, client in enumerate(clients)]
        workers_of = [_steps(caches[rank // workers_a_host], reader, table.name) for rank, reader in enumerate(readers)]
        examples = 0
        for step, sizes in enumerate(zip(*workers_of, strict=True), start=1):
            for host, cache in enumerate(caches):
                if (step + host * sync_steps // hosts) % sync_steps == 0:
                    cache.sync()
            examples += sum(sizes)
            if step == WARMUP_STEPS:
                before, examples = cpu_seconds(service), 0
                at_start = _counters(caches)
        used = cpu_seconds(service) - before
        for client in clients:
            client.close()
    came = _counters(caches)
    return {
        f"core_sec_per_million_examples_sync_{sync_steps}": used / examples * 1e6,
        **{f"{name}_per_example_sync_{sync_steps}": (came[name] - at_start[name]) / examples for name in came},
    }


def _counters(caches):
    names = ("bytes_synced", "rows_pulled", "misses", "pulled_ahead")
    return {name: sum(getattr(cache, name) for cache in caches) for name in names}


def _steps(cache, reader, table):
    """Yields the size of each batch after its step. Batches are looked up ahead, as in the input pipeline."""
    batches = iter(reader)
    while group := list(itertools.islice(batches, PREFETCH_BATCHES)):
        lookups = [Lookup(batch.keys[table]) for batch in group]
        since = cache.pull_ahead(distinct([lookup.unique for lookup in lookups]))
        for batch, lookup in zip(group, lookups, strict=True):
            _step(cache, lookup, since)
            yield batch.size


def _step(cache, lookup, since):
    """Makes a step with constant gradients of the size in a click model."""
    slots = cache.find_or_create(lookup.unique, since)
    gradients = [np.full((len(slots), dim), 1e-4, np.float32) for dim in DIMS]
    cache.apply_gradients(slots, gradients, 0.05)
