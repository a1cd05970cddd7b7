"""What the demo's training asks of the service, without the dense tower: real batches, caches and syncs."""

import pathlib

import loopback
import numpy as np

from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.cache import Cache
from ctr_trainer.embedding.client import ServiceClient
from ctr_trainer.embedding.config import TableConfig
from ctr_trainer.embedding.lookup import Lookup
from ctr_trainer.features.spec import FeatureSpec

BATCH_SIZE = 1024
SPEC = pathlib.Path(__file__).parents[1] / "configs" / "features" / "demo.toml"
# The demo's model: DeepFM, an embedding and a linear weight a key, Adagrad.
DIMS, SCALES, OPTIMIZER, ACCUMULATOR = (16, 1), (0.01, 0.0), "adagrad", 1e-3


def measure(rows, workers, directory, cores):
    """-> service core-seconds per million examples at N = 1 and 30, and bytes and misses an example."""
    convert("synthetic", None, directory / "data", FeatureSpec.load(SPEC), rows=rows, seed=1, progress=False)
    figures = {}
    for sync_steps in (1, 30):
        figures.update(_train(directory, workers, sync_steps, cores))
    return figures


def _train(directory, workers, sync_steps, cores):
    data = directory / "data" / "train"
    readers = [BatchReader(data, BATCH_SIZE, rank, workers, epochs=1) for rank in range(workers)]
    table = readers[0].spec.tables[0]
    config = TableConfig(table.name, DIMS, SCALES, OPTIMIZER, ACCUMULATOR)
    with loopback.start(str(directory), cores[0]) as service:
        clients = [ServiceClient([service.address], loopback.TIMEOUT_S) for _ in range(workers)]
        caches = [Cache(client, config, f"rank{rank}") for rank, client in enumerate(clients)]
        before, examples = loopback.cpu_seconds(service), 0
        for step, batches in enumerate(zip(*readers, strict=True), start=1):
            for rank, (cache, batch) in enumerate(zip(caches, batches, strict=True)):
                _step(cache, batch, table.name)
                if (step + rank * sync_steps // workers) % sync_steps == 0:
                    cache.sync()
                examples += batch.size
        used = loopback.cpu_seconds(service) - before
        for client in clients:
            client.close()
    sums = {name: sum(getattr(cache, name) for cache in caches) for name in ("bytes_synced", "rows_pulled", "misses")}
    return {
        f"core_sec_per_million_examples_sync_{sync_steps}": used / examples * 1e6,
        **{f"{name}_per_example_sync_{sync_steps}": value / examples for name, value in sums.items()},
    }


def _step(cache, batch, table):
    """A step with made-up gradients of a click model's size."""
    lookup = Lookup(batch.keys[table])
    slots = cache.find_or_create(lookup.unique)
    gradients = [np.full((len(slots), dim), 1e-4, np.float32) for dim in DIMS]
    cache.apply_gradients(slots, gradients, 0.05)
