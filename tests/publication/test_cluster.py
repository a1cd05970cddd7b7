"""A publication in a real cluster: three primaries with a replica each, which are killed, and filled up."""

import concurrent.futures
import contextlib
import dataclasses
import os
import threading
import time

import numpy as np
import pytest

from ctr_trainer.live.publication import cluster_contents, cluster_rows, cluster_target
from ctr_trainer.live.publication.cluster import BUCKETS, SLOTS
from ctr_trainer.live.publication.cluster_target import ClusterTarget
from ctr_trainer.live.publication.delivery import Delivery
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.publication.reading import RowsAhead, RowsLost
from ctr_trainer.live.publication.spool import NeedsBase, read_status
from ctr_trainer.live.redis_files import credentials_of
from ctr_trainer.settings.training_configs import GRACE_SECONDS, RedisFiles
from ctr_trainer.system.messages.errors import UserError
from tests import redis_cluster
from tests.publication.published import KEYS, Published, assert_there, deliver_all, tower_of

pytestmark = pytest.mark.integration
LEASE = 3.0  # It must be renewed in time on a busy machine, too.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with redis_cluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def url(cluster, request):
    """The URL of a publication that only this test uses."""
    cluster.await_whole()
    yield f"{cluster.url.rpartition('/')[0]}/{request.node.originalname[5:40]}"
    cluster.clean()


@contextlib.contextmanager
def target_of(url, **settings):
    with contextlib.closing(ClusterTarget(url, RedisFiles(), lease_secs=LEASE, **settings)) as target:
        yield target


@contextlib.contextmanager
def reading(url, **settings):
    with contextlib.closing(open_reader(url, **{"cache_rows": 0, **settings})) as reader:
        yield reader


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_epochs_are_delivered_and_read(url, tmp_path, dtype):
    published = Published(tmp_path, dtype=dtype, rows=range(1, 2000))
    with target_of(url) as target:
        deliver_all(tmp_path, target)
        assert_there(url, published)
        with reading(url) as reader:
            assert reader.refresh() is None
            published.epoch([2, 2500], [3, 9])
            deliver_all(tmp_path, target)
            np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))  # One epoch ahead.
            assert (reader.refresh().epoch, reader.record.epoch, tower_of(reader)) == (1, 0, "tower 1 0")
            reader.advance()
            assert tower_of(reader) == "tower 1 1"
    assert_there(url, published)


def test_a_commit_wakes_a_reader_that_waits_and_is_not_reported_twice(url, tmp_path):
    published = Published(tmp_path)
    with target_of(url) as target, contextlib.ExitStack() as stack:
        deliver_all(tmp_path, target)
        reader, ended = stack.enter_context(reading(url)), threading.Event()
        reader.await_newer(0.01, ended)  # The commit of the base.
        assert not reader.await_newer(0.01, ended)
        published.epoch([2])
        waiting = concurrent.futures.ThreadPoolExecutor(1).submit(
            lambda: any(reader.await_newer(4.0, ended) for _ in range(15))
        )
        deliver_all(tmp_path, target)
        assert waiting.result() and reader.refresh().epoch == 1
        assert not reader.await_newer(0.01, ended)


def test_a_reader_two_epochs_behind_learns_it_from_rows_and_removed_keys(url, tmp_path):
    published = Published(tmp_path)
    with target_of(url) as target:
        deliver_all(tmp_path, target)
        with reading(url) as reader:
            published.epoch([1])
            published.epoch([2], [3])
            deliver_all(tmp_path, target)
            for key in (2, 3):
                with pytest.raises(RowsAhead, match="rows of epoch 2 were read, but epoch 0 is served"):
                    reader.read("dim3", np.array([key]))
            assert reader.read("dim3", np.array([4]))[0].any()
            assert reader.refresh().epoch == 2
            reader.advance()
            np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))


def test_hot_rows_are_given_until_the_next_record_is_served(url, tmp_path):
    published, keys = Published(tmp_path), np.array([1, 99])
    with target_of(url) as target:
        deliver_all(tmp_path, target)
        with reading(url, cache_rows=10) as reader:
            reader.read("dim3", keys)
            state = dict(published.state)
            published.epoch([1, 99])
            deliver_all(tmp_path, target)
            reader.refresh()
            weights, found = reader.read("dim3", keys)
            np.testing.assert_array_equal(weights, published.weights(keys, state))
            assert found.tolist() == [True, False]
            assert (reader.hits, reader.lookups) == (2, 4)
            reader.advance()
            np.testing.assert_array_equal(reader.read("dim3", keys)[0], published.weights(keys))


def test_a_rollback_is_a_new_generation_and_the_rows_of_the_old_one_go(url, tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(cluster_rows, "_NAMES_A_SCAN", 10)
    first = Published(tmp_path, rows=range(1, 2000), holder="a")
    with target_of(url, grace_secs=0) as target:
        deliver_all(tmp_path, target)
        first.epoch([7])
        deliver_all(tmp_path, target)
        rolled_back = Published(tmp_path, generation=2, holder="b", rows=range(5, 50))
        rolled_back.epoch([7])
        deliver_all(tmp_path, target)
        assert_there(url, rolled_back)
        target.tidy()
        assert_there(url, rolled_back)
    assert sum(cluster.ask(port, "DBSIZE") for port in cluster.primaries()) == 45 + 4 + BUCKETS


def test_a_second_publisher_is_refused_and_takes_over_from_a_suspended_one(url, tmp_path):
    first = Published(tmp_path / "a", holder="a", inputs={"age": "number"})
    with target_of(url) as target:
        deliver_all(tmp_path / "a", target)
        with pytest.raises(UserError, match=rf"process {os.getpid()} on host .* publishes there now"):
            ClusterTarget(url, RedisFiles(), lease_secs=LEASE)
        target._fence._lease._ended.set()  # As if it was killed: nobody renews the lease.
        with target_of(url) as other:
            first.epoch([1])
            with pytest.raises(UserError, match="publishes there now"):
                deliver_all(tmp_path / "a", target)
            Published(tmp_path / "b", holder="b", inputs={"age": "number", "price": "number"})
            with pytest.raises(UserError, match=r"clients have to add 'price' \(number\). Publish to another"):
                deliver_all(tmp_path / "b", other)
            second = Published(tmp_path / "c", holder="c", inputs={"age": "number"})
            deliver_all(tmp_path / "c", other)
        first.epoch([1], number=1)
        with pytest.raises(UserError, match="may no longer write"):
            deliver_all(tmp_path / "a", target)
        assert_there(url, second)


def test_the_grace_of_a_generation_begins_when_the_next_one_is_committed(url, tmp_path, monkeypatch):
    first = Published(tmp_path, rows=range(1, 2000), holder="a")
    rows_were_put = []

    def note(*arguments, _put=cluster_contents.put_tower):
        rows_were_put.append(time.time())
        _put(*arguments)

    with target_of(url) as target:
        deliver_all(tmp_path, target)
        with reading(url) as reader:
            monkeypatch.setattr(cluster_contents, "put_tower", note)
            Published(tmp_path, generation=2, holder="b")
            deliver_all(tmp_path, target)
            state = cluster_contents.read_state(target._cluster)
            assert state.since >= rows_were_put[0] and state.before == reader.record.generation
            target.tidy()
            np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], first.weights(KEYS))
            target._state = dataclasses.replace(state, since=state.since - GRACE_SECONDS)
            target.tidy()
            with pytest.raises(RowsLost, match=f"rows of generation {reader.record.generation} are lost"):
                reader.read("dim3", KEYS)


def test_a_generation_is_above_every_earlier_one_whatever_the_clock_says(url, tmp_path, monkeypatch):
    found = []
    for number, clock in enumerate((2_000, 1_000, 3_000)):
        monkeypatch.setattr(cluster_target.time, "time_ns", lambda clock=clock: clock * 1_000_000)
        Published(tmp_path, generation=number + 1, holder=str(number))
        with target_of(url) as target:
            deliver_all(tmp_path, target)
            found.append(cluster_contents.read_state(target._cluster).record.generation)
    assert found == [2_000, 2_001, 3_000]


def test_rows_that_are_lost_while_they_are_put_are_put_again(url, tmp_path, cluster, monkeypatch):
    flushed = []

    def flush_once(*arguments, _put=cluster_contents.put_tower):
        if not flushed:
            flushed.append(cluster.primaries()[1])
            cluster.ask(flushed[0], "FLUSHALL")
        _put(*arguments)

    monkeypatch.setattr(cluster_contents, "put_tower", flush_once)
    published = Published(tmp_path, rows=range(1, 2000))
    with target_of(url) as target:
        deliver_all(tmp_path, target)
    assert flushed
    assert_there(url, published)


def test_a_primary_that_is_killed_between_rows_and_record_costs_nothing(url, tmp_path, cluster, monkeypatch):
    published = Published(tmp_path, rows=range(1, 2000))
    killed = []

    def kill_one(target, record, _mark=ClusterTarget._mark):
        if not killed:
            killed.append(cluster.primaries()[0])
            cluster.kill(killed[0])
        return _mark(target, record)

    with target_of(url) as target:
        deliver_all(tmp_path, target)
    with target_of(url) as target, reading(url) as reader:
        published.epoch(range(1000, 2500), range(1, 100))
        monkeypatch.setattr(ClusterTarget, "_mark", kill_one)
        deliver_all(tmp_path, target)
        assert killed
        reader.refresh()
        reader.advance()
        np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
        cluster.revive()
    assert_there(url, published)


def test_rows_that_are_lost_with_a_node_and_its_replica_are_noticed(url, tmp_path, cluster):
    published = Published(tmp_path, rows=range(1, 2000))
    with target_of(url) as target:
        deliver_all(tmp_path, target)
        cluster.ask(cluster.primaries()[0], "FLUSHALL")
        published.epoch([5])
        with pytest.raises(NeedsBase, match="rows of base 0 are lost at 127.0.0.1"):
            Delivery(tmp_path, lambda: target).step()
    assert read_status(tmp_path).needs_base
    published = Published(tmp_path, generation=2, holder="b", rows=range(1, 2000))
    with target_of(url) as target:
        deliver_all(tmp_path, target)
    assert_there(url, published)


def test_slots_that_move_while_rows_are_written_and_read_lose_nothing(url, tmp_path, cluster):
    published = Published(tmp_path, rows=range(1, 2000))
    source, goal = cluster.primaries()[:2]
    slots = [slot for slot in SLOTS if cluster.has_slot(source, slot)][:6]
    with target_of(url) as target:
        deliver_all(tmp_path, target)
    with target_of(url) as target, reading(url) as reader:
        mover = threading.Thread(target=lambda: [cluster.move_slot(slot, source, goal) for slot in slots])
        mover.start()
        while mover.is_alive():
            published.epoch(range(1, 2500))
            deliver_all(tmp_path, target)
            reader.refresh()
            reader.advance()
            np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
        mover.join()
        for slot in slots:
            cluster.move_slot(slot, goal, source)
    assert_there(url, published)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:1/ctr", "Connection refused.*check that the cluster runs"),
        ("redis://user:secret@127.0.0.1:1/ctr", "expected redis://HOST:PORT"),
        ("redis://127.0.0.1:x/ctr", "expected redis://HOST:PORT"),
        ("redis://", "expected redis://HOST:PORT"),
    ],
)
def test_a_url_that_cannot_be_used_is_named(url, said):
    with pytest.raises(UserError, match=said) as refused:
        open_reader(url)
    assert "secret" not in str(refused.value)


def test_nothing_published_is_said_and_a_cluster_that_evicts_is_refused(url, cluster):
    with pytest.raises(UserError, match="there is no publication yet"):
        open_reader(url)
    cluster.ask_all("CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(UserError, match="evicts rows when full"):
            ClusterTarget(url, RedisFiles())
    finally:
        cluster.ask_all("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("line", "credentials"),
    [
        ("secret", {"password": "secret"}),
        ("ctr:secret:2", {"username": "ctr", "password": "secret:2"}),
        (":secret:2", {"password": "secret:2"}),
    ],
)
def test_a_password_may_have_a_colon(tmp_path, line, credentials):
    (tmp_path / "auth").write_text(f"{line}\n")
    assert credentials_of(RedisFiles(redis_auth_file=str(tmp_path / "auth"))) == credentials


def test_a_user_and_a_password_are_shown(url, tmp_path, cluster):
    published, file = Published(tmp_path / "spool"), tmp_path / "auth"
    for port in cluster.ports:
        cluster.ask(port, "ACL", "SETUSER", "ctr", "on", ">secret:2", "~*", "&*", "+@all")
    cluster.ask_all("ACL", "SETUSER", "default", "-cluster", "-get", "-mget")
    try:
        with pytest.raises(UserError, match="the user in redis_auth_file has all rights"):
            open_reader(url)
        file.write_text("ctr:secret:2\n")
        redis = RedisFiles(redis_auth_file=str(file))
        with contextlib.closing(ClusterTarget(url, redis, lease_secs=LEASE)) as target:
            deliver_all(tmp_path / "spool", target)
        with contextlib.closing(open_reader(url, redis=redis)) as reader:
            np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
    finally:
        for port in cluster.ports:
            cluster.ask(port, "ACL", "SETUSER", "default", "+@all", username="ctr", password="secret:2")


def test_one_node_with_tls_takes_rows_and_says_that_it_has_no_replica(tmp_path, caplog):
    with redis_cluster.one_with_tls(tmp_path) as (url, redis):
        published = Published(tmp_path / "spool")
        with contextlib.closing(ClusterTarget(url, redis, lease_secs=LEASE)) as target:
            deliver_all(tmp_path / "spool", target)
        with contextlib.closing(open_reader(url, redis=redis)) as reader:
            np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
        assert "has no replica" in caplog.text
        with pytest.raises(UserError, match="CERTIFICATE_VERIFY_FAILED"):
            open_reader(url)
        with pytest.raises(UserError, match="name the cluster by rediss://"):
            open_reader(url.replace("rediss", "redis"), redis=redis)
