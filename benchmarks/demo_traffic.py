"""What the demo's training asks of the service, without the dense tower: real batches, caches and syncs."""

import itertools
import pathlib

import loopback
import numpy as np

from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.index.distinct_keys import distinct
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.row_optimizer import ROW_OPTIMIZERS
from ctr_trainer.settings.run_config import RunConfig

BATCH_SIZE = 1024
PREFETCH_BATCHES = RunConfig().prefetch_batches
# Steps of each worker before the clock starts: the service loads its kernels, the caches fill.
WARMUP_STEPS = 60
SPEC = pathlib.Path(__file__).parents[1] / "configs" / "features" / "demo.toml"
# The demo's model: DeepFM, an embedding and a linear weight a key; Adagrad's rows are 34 floats, row-wise Adagrad's 19.
DIMS, SCALES, ACCUMULATOR = (16, 1), (0.01, 0.0), 1e-3
OPTIMIZERS = ("rowwise_adagrad", "adagrad")


def write_data(rows, directory):
    """Writes the demo's data, for the other functions here."""
    convert("synthetic", None, directory / "data", FeatureSpec.load(SPEC), rows=rows, seed=1, progress=False)


def measure(workers, directory, cores):
    """-> {optimizer: service core-seconds per million examples at N = 1 and 30, and bytes and misses an example}"""
    figures = {}
    for optimizer in OPTIMIZERS:
        figures[optimizer] = {}
        for sync_steps in (1, 30):
            figures[optimizer].update(_train(directory, workers, optimizer, sync_steps, cores))
    return figures


def measure_hosts(hosts, workers_a_host, directory, cores):
    """-> the figures of row-wise Adagrad at N = 30, of workers that train one copy of the rows on each host."""
    return _train(directory, hosts * workers_a_host, OPTIMIZERS[0], 30, cores, workers_a_host)


def _train(directory, workers, optimizer, sync_steps, cores, workers_a_host=1):
    """The workers take turns in this process, so a host's copy needs no shared memory: the service sees the same."""
    data, hosts = directory / "data" / "train", workers // workers_a_host
    readers = [BatchReader(data, BATCH_SIZE, rank, workers, epochs=1) for rank in range(workers)]
    table = readers[0].spec.tables[0]
    config = TableConfig(table.name, DIMS, SCALES, ROW_OPTIMIZERS[optimizer](initial_accumulator=ACCUMULATOR))
    with loopback.start(str(directory), cores[0]) as service:
        clients = [loopback.connect(service) for _ in range(hosts)]
        caches = [RowCache(client, config, f"host{host}") for host, client in enumerate(clients)]
        workers_of = [_steps(caches[rank // workers_a_host], reader, table.name) for rank, reader in enumerate(readers)]
        examples = 0
        for step, sizes in enumerate(zip(*workers_of, strict=True), start=1):
            for host, cache in enumerate(caches):
                if (step + host * sync_steps // hosts) % sync_steps == 0:
                    cache.sync()
            examples += sum(sizes)
            if step == WARMUP_STEPS:
                before, examples = loopback.cpu_seconds(service), 0
                at_start = _counters(caches)
        used = loopback.cpu_seconds(service) - before
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
    """Yields the size of each batch after its step; batches are looked up ahead as the input pipeline does."""
    batches = iter(reader)
    while group := list(itertools.islice(batches, PREFETCH_BATCHES)):
        lookups = [Lookup(batch.keys[table]) for batch in group]
        since = cache.pull_ahead(distinct([lookup.unique for lookup in lookups]))
        for batch, lookup in zip(group, lookups, strict=True):
            _step(cache, lookup, since)
            yield batch.size


def _step(cache, lookup, since):
    """A step with made-up gradients of a click model's size."""
    slots = cache.find_or_create(lookup.unique, since)
    gradients = [np.full((len(slots), dim), 1e-4, np.float32) for dim in DIMS]
    cache.apply_gradients(slots, gradients, 0.05)
