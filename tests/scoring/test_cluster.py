"""A scoring server whose rows are in a real cluster."""

import contextlib
import functools

import numpy as np
import pytest

from ctr_trainer.publication.cluster_target import ClusterTarget
from ctr_trainer.publication.delivery import Delivery
from ctr_trainer.publication.open_reader import open_reader
from ctr_trainer.settings.redis_files import RedisFiles
from tests import redis_cluster
from tests.scoring import trained
from tests.scoring.conftest import Client, running, until

pytestmark = pytest.mark.integration


def _deliver(spool, url):
    with contextlib.closing(ClusterTarget(url, RedisFiles())) as target:
        delivery = Delivery(spool, target)
        while delivery.step() is not None:
            pass


def test_gives_predicts_numbers_of_each_epoch_and_keeps_hot_rows(small_model, tmp_path):
    spool, expected = tmp_path / "spool", small_model.expected
    trained.publish(spool, small_model.estimator, small_model.checkpoints[0])
    with redis_cluster.running(tmp_path) as cluster:
        _deliver(spool, cluster.url)
        with (
            running(cluster.url, reader=functools.partial(open_reader, cache_secs=60.0)) as server,
            contextlib.closing(Client(server.port)) as client,
        ):

            def probabilities():
                status, answer, headers = client.predict(instances=small_model.instances)
                assert status == 200, answer
                return headers["X-Model-Epoch"], [each["probabilities"] for each in answer["predictions"]]

            for _ in range(2):
                epoch, found = probabilities()
                assert epoch == "0"
                np.testing.assert_allclose(found, expected[0], atol=1e-6, rtol=0)
            lines = client.ask("/metrics")[1].splitlines()
            cached = dict(line.split(" ") for line in lines if line.startswith("ctr_score_row_cache_keys_total"))
            assert len(set(cached.values())) == 1 and float(*set(cached.values())) > 0  # the second time all are found
            trained.publish(spool, small_model.estimator, small_model.checkpoints[1], epoch=1)
            _deliver(spool, cluster.url)
            until(lambda: probabilities()[0] == "1", "the next epoch")
