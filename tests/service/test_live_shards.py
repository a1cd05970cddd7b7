"""Evaluation and prediction beside shards that a training uses."""

import contextlib

import numpy as np
import pytest

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.embedding.memory import memory_limits
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.estimator.open_store import restore_evaluated
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import SecurityFiles
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import UserError
from tests import checkpoints, small
from tests.models import every
from tests.rows import pulled
from tests.service.conftest import CONFIG, TIMEOUT

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    distributed.init()
    return small.make(tmp_path_factory.mktemp("live"), rows=300)


def test_evaluating_and_predicting_leave_running_shards_as_they_are(data, tmp_path):
    with LocalService(tmp_path, tmp_path / "log", TIMEOUT) as service:
        (tmp_path / "token").write_text(service.token)
        rows = dict(service=service.address, security=SecurityFiles(str(tmp_path / "token")))
        security = ClientSecurity(service.token)
        estimator = every.estimator("lr", tmp_path / "model", rows)
        estimator.train(lambda position: every.reader("lr", data, position=position), max_steps=20)
        saved = checkpoints.values(estimator.latest_checkpoint())
        alone = every.estimator("lr", tmp_path / "model")
        expected = alone.evaluate(lambda: every.once("lr", data))

        # A training of another process, further on than its checkpoint.
        trainer = ServiceClient([service.address], TIMEOUT, security, Owner.new(tmp_path / "model"))
        with contextlib.closing(trainer):
            (layout,) = trainer.tables()
            table, keys = layout["name"], saved["keys"]
            assert layout["rows"] == len(keys)
            reader = ServiceClient([service.address], TIMEOUT, security)
            live = pulled(reader, table, keys) + 1
            trainer._configs[table] = reader._config(table)
            trainer.sync(table, keys, np.ones_like(live), "other", 1)
            requests = reader.stats()["services"][service.address]["requests"]

            assert estimator.evaluate(lambda: every.once("lr", data)) == expected
            predicted = list(estimator.predict(lambda: every.once("lr", data)))
            assert len(predicted) == 300

            np.testing.assert_array_equal(pulled(trainer, table, keys), live)
            trainer.sync(table, keys, np.ones_like(live), "other", 2)
            # Neither asked the shards for anything.
            assert reader.stats()["services"][service.address]["requests"] == {
                **requests,
                "sync": requests["sync"] + 1,
                "pull": requests["pull"] + 1,
            }
            reader.close()


def test_rows_that_do_not_fit_into_memory_are_refused_before_they_are_read(data, tmp_path, monkeypatch):
    estimator = every.estimator("lr", tmp_path / "model")
    estimator.train(lambda position: every.reader("lr", data, position=position), max_steps=5)
    small_limit = memory_limits.MemoryLimit("the cgroup /job", 1000, 100)
    monkeypatch.setattr("ctr_trainer.estimator.open_store.tightest", lambda: small_limit)
    with pytest.raises(UserError, match=r"its \d+ rows take at least .* the cgroup /job .* has 0.00 GB of memory left"):
        estimator.evaluate(lambda: every.once("lr", data))
    store, on_disk = LocalStore(), {"table": CONFIG.name, "kind": snapshot.COLD, "rows": 1000}
    store.create_table(CONFIG)
    with pytest.raises(UserError, match="its 1000 rows take at least"):
        restore_evaluated(store, Checkpoint(str(tmp_path), 1, [on_disk], [], None, 0))
