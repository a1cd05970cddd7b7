"""Embeddings over caches, in one process: two of them are two workers, on a store that either reaches."""

import threading
import types

import numpy as np
import pytest

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.worker.row_copies import Group
from ctr_trainer.estimator import EmbeddingConfig
from ctr_trainer.estimator.built_step import BuiltStep
from ctr_trainer.estimator.open_embeddings import open_embeddings
from ctr_trainer.estimator.row_gradients import RowSync
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.features.columns import Label, SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import EMBEDDING
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError
from tests.rows import pulled

STEP = BuiltStep(None, RunLength(), {}, None)


class Remote:
    """A store that is not in this process as far as `Embeddings` can tell; `gate` holds up syncs."""

    def __init__(self, store):
        self._store = store  # Workers with the same store see each other's rows.
        self.gate = threading.Event()
        self.gate.set()
        self.pulls = 0

    def pull(self, *arguments):
        self.pulls += 1
        return self._store.pull(*arguments)

    def sync(self, *arguments):
        assert self.gate.wait(30)
        return self._store.sync(*arguments)

    def put(self, *arguments):
        assert self.gate.wait(30)
        self._store.put(*arguments)

    def __getattr__(self, name):
        return getattr(self._store, name)


class Tensor:
    """Stands for an embedding input: something with a name that a feed_dict takes as a key."""

    name = "rows:0"


@pytest.fixture
def store():
    return LocalStore()


def _worker(store, ahead=0, **config):
    spec = FeatureSpec(name="s", label=Label("y"), dense=(), sparse=(SparseFeature("f", "f", 2, "f"),))
    features = types.SimpleNamespace(spec=spec, segments={spec.tables[0].name: {EMBEDDING: Tensor()}})
    embedding = EmbeddingConfig(optimizer="sgd", stddev=0.0, **config)
    config, remote = RunConfig(threads=1, seed=1, embedding=embedding), Remote(store)
    return open_embeddings(features, config, remote, STEP, ahead=ahead), remote, spec.tables[0].name


def _batch(table, *keys):
    keys = np.array(keys, np.int64)[:, None]
    none = np.zeros(len(keys), np.float32)
    return Batch(len(keys), {table: keys}, {}, none[:, None], none, none)


def _prepared(embeddings, table, *keys):
    (prepared,) = embeddings.prepare([_batch(table, *keys)])
    return prepared


def _train(embeddings, prepared):
    """One step whose gradient is -1 everywhere, at the rate 1. -> what the step read, float32[B, 2]"""
    _, lookups = prepared
    feed, tables = embeddings.look_up(lookups, create=True)
    (rows,) = feed.values()
    embeddings.add_gradients(tables, {Tensor.name: -np.ones_like(rows)})
    embeddings.apply_gradients(learning_rate=1.0)
    return rows[:, 0]


def test_steps_go_on_beside_a_sync_and_nothing_of_them_is_lost(store):
    embeddings, remote, table = _worker(store)
    batch = _prepared(embeddings, table, 1, 2)
    _train(embeddings, batch)
    remote.gate.clear()
    embeddings.syncs.sync()
    np.testing.assert_array_equal(_train(embeddings, batch), np.ones((2, 2)))
    assert len(store.tables[table]) == 0
    remote.gate.set()
    embeddings.flush()
    np.testing.assert_array_equal(pulled(store, table, np.array([1, 2])), np.full((2, 2), 2))


@pytest.mark.parametrize(("rows", "read"), [(0, 1), (1, 3)])
def test_batches_wait_for_each_other_only_if_rows_may_be_missing(store, rows, read):
    """A host that has all rows of the service pulls none, and so it need not merge the keys of several batches."""
    embeddings, _, table = _worker(store, ahead=3)
    if rows:
        other, _, _ = _worker(store)
        _train(other, _prepared(other, table, 7))
        other.flush()
    embeddings.begin()
    taken = []
    batches = embeddings.prepare(taken.append(key) or _batch(table, key) for key in range(1, 8))
    _train(embeddings, next(batches))
    assert len(taken) == read


def test_batches_pulled_ahead_together_are_pulled_in_one_request(store):
    embeddings, remote, table = _worker(store, ahead=3)
    keys = ((1, 2), (2, 3), (3, 1), (4, 4))
    prepared = embeddings.prepare(_batch(table, *of_batch) for of_batch in keys)
    for number, pulls in enumerate((1, 1, 1, 2)):
        batch = next(prepared)
        assert remote.pulls == pulls
        assert batch[0].keys[table][:, 0].tolist() == list(keys[number])
        _train(embeddings, batch)
    assert (remote.pulls, list(prepared)) == (2, [])
    embeddings.flush()
    # Keys 1 to 3 were in two batches; a batch in which 4 stands twice has twice its gradient.
    np.testing.assert_array_equal(pulled(store, table, np.arange(1, 5)), np.full((4, 2), 2))


@pytest.mark.parametrize(("rank", "expected"), [(0, [3, 6]), (1, [2, 5]), (2, [1, 4, 7])])
def test_the_syncs_of_the_ranks_are_spread_over_the_steps(monkeypatch, rank, expected):
    synced = []
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "size", lambda: 3)
    syncs = RowSync({}, Group(groups=3), False, RunConfig(embedding=EmbeddingConfig(sync_steps=3)))
    monkeypatch.setattr(syncs, "sync", lambda: synced.append(step))
    for step in range(1, 8):
        syncs.sync_if_due(step, Clock())
    assert synced == expected
    assert syncs.wait_ms is not None


def test_the_tables_of_a_model_are_pulled_and_synced_at_once(store):
    """Each request waits until that of the other table has come too."""
    together = threading.Barrier(2)

    class Together(Remote):
        def pull(self, *arguments):
            together.wait(30)
            return super().pull(*arguments)

        def put(self, *arguments):
            together.wait(30)
            super().put(*arguments)

    sparse = tuple(SparseFeature(name, name, dim, name) for name, dim in (("f", 2), ("g", 3)))
    spec = FeatureSpec(name="s", label=Label("y"), dense=(), sparse=sparse)
    names = [table.name for table in spec.tables]
    features = types.SimpleNamespace(spec=spec, segments={name: {EMBEDDING: Tensor()} for name in names})
    embeddings = open_embeddings(
        features, RunConfig(embedding=EmbeddingConfig(optimizer="sgd")), Together(store), STEP, ahead=1
    )
    none = np.zeros(1, np.float32)
    batch = Batch(1, {name: np.array([[7]]) for name in names}, {}, none[:, None], none, none)
    ((_, lookups),) = embeddings.prepare([batch])
    for name, cache in embeddings.rows.items():
        lookup, since = lookups[name]
        slots = cache.find_or_create(lookup.unique, since)
        cache.apply_gradients(lookup.unique, slots, [np.ones((1, cache.config.weights), np.float32)], 1.0)
    embeddings.flush()
    embeddings.syncs.close()
    assert [store.stats()["tables"][name]["rows"] for name in names] == [1, 1]


def test_shards_of_a_service_that_runs_already_are_refused():
    with pytest.raises(UserError, match="service_shards=2 is for services that the job starts"):
        EmbeddingConfig(service="localhost:7700", service_shards=2)
