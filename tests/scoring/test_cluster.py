"""A scoring server whose rows are in a real cluster."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import re
import threading

import numpy as np
import pytest

from ctr_trainer.live.publication import cluster as connection_to_cluster
from ctr_trainer.live.publication import cluster_contents, cluster_rows, records
from ctr_trainer.live.publication.cluster_target import ClusterTarget
from ctr_trainer.live.publication.delivery import deliver
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.publication.spool import read_status
from ctr_trainer.settings.training_configs import RedisFiles
from tests import redis_cluster
from tests.publication.published import Published, deliver_all
from tests.scoring import trained
from tests.scoring.conftest import BeforeReads, Client, probabilities, running, until

pytestmark = pytest.mark.integration
_STATE = "{ctr}state"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with redis_cluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(servers):
    yield servers
    servers.clean()


class Publications:
    """Publishes the checkpoints of a model to a cluster, each as a training of its own.

    Attributes:
      checkpoint_of: the number of the checkpoint of each generation.
    """

    def __init__(self, model, cluster, directory):
        self._model, self._cluster, self._directory = model, cluster, directory
        self.checkpoint_of = {}

    def spool(self, number):
        """Returns a spool of a checkpoint by its number."""
        spool = self._directory / f"spool-{len(self.checkpoint_of)}"
        trained.Publishing(spool, self._model).publish(number)
        return spool

    def publish(self, number):
        """Publishes a checkpoint by its number. Returns its generation."""
        spool = self.spool(number)
        with contextlib.closing(ClusterTarget(self._cluster.url, RedisFiles())) as target:
            deliver_all(spool, target)
        return self.note(number)

    def note(self, number):
        """Takes that the current generation is of a checkpoint. Returns the generation."""
        with contextlib.closing(open_reader(self._cluster.url)) as reader:
            self.checkpoint_of[reader.record.generation] = number
        return reader.record.generation

    def assert_right(self, client):
        """Asks for predictions. Those of status 200 are right; returns the status and the generation."""
        status, answer, headers = client.predict(instances=self._model.instances)
        if status != 200:
            return status, None
        generation = int(headers["X-Model-Generation"])
        found = probabilities(answer)
        np.testing.assert_allclose(found, self._model.expected[self.checkpoint_of[generation]], atol=1e-6, rtol=0)
        return status, generation


@pytest.fixture
def publications(small_model, cluster, tmp_path):
    return Publications(small_model, cluster, tmp_path)


@contextlib.contextmanager
def _asking(cluster, **settings):
    """Gives a client of a server that keeps no hot rows."""
    with (
        running(cluster.url, reader=functools.partial(open_reader, cache_rows=0, **settings)) as server,
        contextlib.closing(Client(server.port)) as client,
    ):
        yield client


def _await_health(publications, client, status):
    """Waits until the server's health has a status; each answer meanwhile is right or a refusal. Returns the health."""

    def is_so():
        publications.assert_right(client)
        return client.ask("/healthz")[0] == status

    until(is_so, f"the health {status}")
    return client.ask("/healthz")[1]["status"]


def test_gives_predicts_numbers_of_each_epoch_and_keeps_hot_rows(small_model, tmp_path, cluster):
    spool, expected = tmp_path / "spool", small_model.expected
    publishing = trained.Publishing(spool, small_model)
    publishing.publish(0)
    with contextlib.closing(ClusterTarget(cluster.url, RedisFiles())) as target:
        deliver_all(spool, target)
        with (
            running(cluster.url) as server,
            contextlib.closing(Client(server.port)) as client,
        ):

            def predicted():
                status, answer, headers = client.predict(instances=small_model.instances)
                assert status == 200, answer
                return headers["X-Model-Epoch"], probabilities(answer)

            for _ in range(2):
                epoch, found = predicted()
                assert epoch == "0"
                np.testing.assert_allclose(found, expected[0], atol=1e-6, rtol=0)
            cached = {n: v for n, v in client.figures().items() if n.startswith("ctr_score_row_cache_keys_total")}
            assert len(set(cached.values())) == 1 and min(cached.values()) > 0  # the second time all are found
            publishing.publish(1)
            deliver_all(spool, target)
            until(lambda: predicted()[0] == "1", "the next epoch")


def test_a_request_is_answered_although_epochs_come_faster_than_refreshes(small_model, tmp_path, cluster):
    spool = tmp_path / "spool"
    publishing = trained.Publishing(spool, small_model)
    left = iter(range(6))
    with contextlib.closing(ClusterTarget(cluster.url, RedisFiles())) as target:

        def publish():
            publishing.publish(0)
            deliver_all(spool, target)

        def overtake():
            """Publishes two more epochs during each of the first reads, whose rows are then ahead of the record."""
            if next(left, None) is not None:
                publish()
                publish()

        publish()
        with (
            running(cluster.url, reader=lambda url: BeforeReads(open_reader(url, cache_rows=0), overtake)) as server,
            contextlib.closing(Client(server.port)) as client,
        ):
            status, answer, headers = client.predict(instances=small_model.instances)
    assert status == 200, answer
    assert headers["X-Model-Epoch"] == "12"
    np.testing.assert_allclose(probabilities(answer), small_model.expected[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("lost", ["a node without the state", "all flushed"])
def test_lost_rows_are_refused_until_they_are_published_again(cluster, publications, caplog, lost):
    first = publications.publish(0)
    with _asking(cluster) as client:
        assert publications.assert_right(client) == (200, first)
        other = next(port for port in cluster.primaries() if port != cluster.primary_of(_STATE))
        if lost == "a node without the state":
            cluster.lose(other)
        else:
            for port in cluster.primaries():
                cluster.ask(port, "FLUSHALL")
        _await_health(publications, client, 503)
        until(lambda: "are lost" in client.ask("/healthz")[1]["status"], "the loss, after the node's silence")
        said = client.ask("/healthz")[1]["status"]
        assert f"127.0.0.1:{other}" in said
        status, answer, headers = client.predict(instances=publications._model.instances)
        assert status == 503 and "are lost" in answer["error"] and headers["Retry-After"] == "1"
        cluster.await_whole()
        second = publications.publish(1)
        _await_health(publications, client, 200)
        until(lambda: publications.assert_right(client) == (200, second), "the rows to be there again")
    said = [each.getMessage() for each in caplog.records if "are lost" in each.getMessage()]
    assert len(said) == 1, said


@pytest.mark.parametrize("has_state", [False, True], ids=["without the state", "with the state"])
def test_health_is_503_while_a_shard_does_not_answer_and_200_after(cluster, publications, monkeypatch, has_state):
    monkeypatch.setattr(connection_to_cluster, "_SECONDS", 1.0)
    generation = publications.publish(0)
    with _asking(cluster) as client:
        assert publications.assert_right(client) == (200, generation)
        with_state = cluster.primary_of(_STATE)
        port = with_state if has_state else next(each for each in cluster.primaries() if each != with_state)
        shard = [port, *cluster.replicas_of(port)]
        for is_back in (True, False):
            for each in shard:
                (cluster.pause if is_back else cluster.kill)(each)
            until(lambda: client.ask("/healthz")[0] == 503, "the health 503")
            assert cluster.url in client.ask("/healthz")[1]["status"]
            assert publications.assert_right(client) == (503, None)
            assert client.ask("/healthz")[0] == 503
            if is_back:
                for each in shard:
                    cluster.resume(each)
                until(lambda: client.ask("/healthz")[0] == 200, "the health 200")
                assert publications.assert_right(client) == (200, generation)


def _leave_remains(cluster, spool, holder):
    """Leaves what a delivery leaves that was killed before its first record was there: rows and a lease."""
    target = ClusterTarget(cluster.url, RedisFiles(), lease_secs=1.0)
    published = Published(spool, rows=range(1, 30_000), holder=holder)
    record = dataclasses.replace(published.record, generation=target._begin(holder))
    target._cluster.run(cluster_contents.of_marks(target._cluster, record.generation, "SET", -1, "NX"))
    cluster_rows.put(target._cluster, record, records.generation_path(spool, 1))
    target._fence._lease._ended.set()  # Nobody renews the lease.


def _fill(cluster):
    """Has no server take any more bytes than it has."""
    for port in cluster.ports:
        used = re.search(rb"used_memory:(\d+)", cluster.ask(port, "INFO", "memory"))[1]
        cluster.ask(port, "CONFIG", "SET", "maxmemory", int(used))


def test_a_cluster_full_of_a_dead_generation_takes_the_next_one(cluster, publications, tmp_path):
    cluster.ask_all("CONFIG", "SET", "repl-backlog-size", "16kb")  # It grows with what is written, deletions too.
    first = publications.publish(0)
    _leave_remains(cluster, tmp_path / "dead", "dead")
    with _asking(cluster) as client:
        assert publications.assert_right(client) == (200, first)
        _fill(cluster)
        second = publications.publish(1)
        until(lambda: publications.assert_right(client) == (200, second), "the next generation")
    names = [name for port in cluster.primaries() for name in cluster.ask(port, "KEYS", "{????}ctr:*")]
    assert {connection_to_cluster.generation_of("ctr", name) for name in names} == {first, second}


def test_a_delivery_that_found_the_cluster_full_succeeds_once_there_is_room(cluster, publications, tmp_path):
    first, spool, ended = publications.publish(0), publications.spool(1), threading.Event()
    to = functools.partial(ClusterTarget, cluster.url, RedisFiles())
    with _asking(cluster) as client, concurrent.futures.ThreadPoolExecutor(1) as threads:
        _fill(cluster)
        delivering = threads.submit(deliver, spool, cluster.url, to, ended)
        try:
            until(lambda: "raise maxmemory" in getattr(read_status(spool), "problem", ""), "the refusal")
            assert publications.assert_right(client) == (200, first)
            assert client.ask("/healthz")[0] == 200
            cluster.ask_all("CONFIG", "SET", "maxmemory", "0")
            until(lambda: read_status(spool).epoch == 0, "the delivery")
            second = publications.note(1)
            until(lambda: publications.assert_right(client) == (200, second), "the next generation")
        finally:
            ended.set()
        delivering.result(60)
