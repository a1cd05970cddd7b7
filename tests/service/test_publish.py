"""Epochs of a publication, written by the store in this process and by real shards, beside steps that go on."""

import concurrent.futures

import numpy as np
import pytest

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError
from tests import published
from tests.service.conftest import CONFIG

OTHER = TableConfig("u", (2,), (0.1,), "adagrad", seed=5, max_rows=500)
CONFIGS = {config.name: config for config in (CONFIG, OTHER)}


@pytest.fixture(params=["local", "shards"])
def store(request, start, connect):
    if request.param == "local":
        store = LocalStore(is_published=True)
    else:
        store = connect([service.address for service in start(2)])
    for config in CONFIGS.values():
        store.create_table(config)
    return store


class Publisher:
    """Publishes a store, and applies what it published as a reader does."""

    def __init__(self, store, directory, dtype="float32"):
        self.store, self.directory, self.dtype = store, directory, dtype
        self.epoch, self.rows = None, {}

    def publish(self):
        """Publishes the next epoch; returns a dict of kind -> number of rows."""
        epoch = 0 if self.epoch is None else self.epoch + 1
        path = self.directory / f"{epoch}"
        files = self.store.publish(path, epoch, self.dtype, self.epoch)
        published.apply(path, files, CONFIGS, self.dtype, self.rows, base=self.epoch is None)
        self.epoch = epoch
        return {kind: sum(f["rows"] for f in files if f["kind"] == kind) for kind in ("rows", "removed")}


def _push(store, table, keys, number):
    keys = np.unique(keys)
    store.sync(table, keys, np.ones((len(keys), CONFIGS[table].width), np.float32), "w", number)


def _saved(store, directory):
    files = store.save(directory / "saved", step=1)
    return published.weights_of(snapshot.iterate(directory / "saved", files))


def test_published_rows_equal_saved_rows_and_replaced_rows_need_a_base(store, data_dir, tmp_path_factory):
    directory = data_dir / tmp_path_factory.mktemp("p").name
    rng, publisher = np.random.default_rng(1), Publisher(store, directory)
    for number in range(3):
        for table in CONFIGS:
            _push(store, table, rng.integers(1, 5000, 700), number)
        found = publisher.publish()
    assert 700 < found["rows"] < 1500 and found["removed"] > 100  # Of the limited table.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # Rows change while epochs are written.
        pushing = thread.submit(lambda: [_push(store, "u", rng.integers(1, 5000, 300), 10 + i) for i in range(60)])
        while not pushing.done():
            publisher.publish()
        pushing.result()
    publisher.publish()
    assert publisher.publish() == dict(rows=0, removed=0)
    saved = _saved(store, directory)
    assert publisher.rows == saved and len(saved["u"]) > 450 and len(saved["t"]) > 1500
    store.restore(directory, [])
    with pytest.raises(UserError, match=f"what changed since epoch {publisher.epoch} is not known.*publish all rows"):
        publisher.publish()


def test_an_epoch_that_some_shards_could_not_write_is_written_again(start, connect, data_dir, tmp_path_factory):
    directory = data_dir / tmp_path_factory.mktemp("p").name
    store = connect([service.address for service in start(2)])
    for config in CONFIGS.values():
        store.create_table(config)
    publisher = Publisher(store, directory, "int8")
    _push(store, "t", np.arange(1, 400), 0)
    assert publisher.publish() == dict(rows=399, removed=0)
    _push(store, "t", np.arange(300, 500), 1)
    (directory / "1").mkdir()
    blocked = directory / "1" / "t-00001-of-00002.rows.arrow"
    blocked.mkdir()
    with pytest.raises(UserError, match="t-00001-of-00002.rows.arrow: cannot be written.*retries"):
        publisher.publish()
    blocked.rmdir()
    _push(store, "t", np.arange(10, 20), 2)
    assert publisher.publish() == dict(rows=210, removed=0)
    assert len(publisher.rows["t"]) == 499


def test_a_service_refuses_publications_that_it_must_not_write(client, connect, data_dir, tmp_path):
    with pytest.raises(UserError, match="is outside the service's data_dir"):
        client.publish(tmp_path, 0, "float32")
    _push(client, "t", np.arange(1, 10), 0)
    with pytest.raises(UserError, match="float32, float16, int8, not as 'double'"):
        client.publish(data_dir / "p", 0, "double")
    reader = connect([client._shards[0].address], lease=None)
    with pytest.raises(UserError, match="publish"):
        reader.publish(data_dir / "p", 0, "float32")
    store = LocalStore()
    store.create_table(CONFIG)
    for number in range(2):
        store.sync("t", np.array([7]), np.full((1, CONFIG.width), 3e38, np.float32), "w", number)
    with pytest.raises(UserError, match="table t, epoch 0 of the publication: the row of key 7 is not finite"):
        store.publish(tmp_path, 0, "float32")
    assert not list(tmp_path.iterdir())
