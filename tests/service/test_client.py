import concurrent.futures
import dataclasses
import functools
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from ctr_trainer.embedding.index import key_kernels
from ctr_trainer.embedding.service import row_requests, shard
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.row_form import DTYPES
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import ServiceLost, UserError
from tests.parallel import launch
from tests.ports import free_port
from tests.rows import pulled
from tests.service.conftest import CONFIG, ones
from tests.service.proxy import CuttingProxy

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_shard_by_socket_three_by_memory_and_a_local_store_agree(start, connect, monkeypatch, dtype):
    monkeypatch.setattr(row_requests, "_LEAST_BYTES", 0)
    clients = [connect([service.address for service in start(shards)], by_socket=shards == 1) for shards in (1, 3)]
    rng = np.random.default_rng(0)
    keys = rng.integers(-(2**62), 2**62, 5000)
    config = dataclasses.replace(CONFIG, dims=(6, 1), init_scales=(0.1, 0.0), row_dtype=dtype)
    deltas = config.form.encode(rng.standard_normal((5000, config.width)).astype(np.float32))
    answers = []
    for store in (LocalStore(), *clients):
        store.create_table(config)
        store.sync("t", keys[:4000], deltas[:4000], "w", 1)
        store.put("t", keys[3000:4500], deltas[:1500], "put", 1)
        answers.append(
            [
                store.sync("t", keys[1000:], deltas[1000:], "w", 2).rows,
                pulled(store, "t", keys),
                pulled(store, "t", np.arange(1, 100)),
                pulled(store, "t", np.arange(1, 100), missing="zeros"),
                store.stats()["tables"]["t"]["rows"],
                pulled(store, "t", np.empty(0, np.int64)),
                *_newer(store, keys[:3000], deltas[:3000]),
            ]
        )
    for answer in answers[1:]:
        for got, expected in zip(answer, answers[0], strict=True):
            np.testing.assert_array_equal(got, expected)
    rows = [service["tables"]["t"]["rows"] for service in clients[1].stats()["services"].values()]
    owners = [int(key_kernels.mix(key % 2**64)) % 3 for key in keys.tolist()]
    assert rows == np.bincount(owners).tolist() and sum(rows) == 5000


def _newer(store, keys, deltas):
    """Returns the positions and rows of syncs and pulls that know some of the rows."""
    known = store.pull("t", keys, np.zeros(3000, np.uint32)).versions
    store.sync("t", keys[::7], deltas[::7], "other", 1)
    answers = [
        store.pull("t", keys, known),
        first := store.sync("t", keys, deltas, "w", 3, known),
        store.sync("t", keys, deltas, "w", 4, first.versions),
        store.pull("t", keys, first.versions),
        store.sync("t", keys[:0], deltas[:0], "w", 5, known[:0]),
    ]
    assert [len(answer.positions) for answer in answers] == [429, 429, 0, 3000, 0]
    return [part for answer in answers for part in (answer.positions, answer.rows)]


@pytest.mark.parametrize("way", ["upward", "downward"])
def test_a_sync_whose_connection_breaks_is_applied_once(start, connect, way):
    (service,) = start()
    proxy = CuttingProxy(service.address)
    try:
        client = connect([proxy.address], by_socket=True)
        client.create_table(CONFIG)
        keys = np.arange(1, 20_001)  # A sync is 480 kB up and down.
        expected = pulled(client, "t", keys)
        places = (1, 40, 1000, 30_000, 100_000, 200_000)
        for sequence, place in enumerate(places, start=1):
            expected = expected + 1
            proxy.cut_after(**{way: place})
            newer = client.sync("t", keys, ones(20_000), "w", sequence)
            np.testing.assert_allclose(newer.rows, expected, rtol=1e-5)
            assert proxy.cuts == sequence
            np.testing.assert_allclose(pulled(client, "t", keys), expected, rtol=1e-5)
        proxy.cut_after(**{way: 50_000})
        np.testing.assert_allclose(pulled(client, "t", keys), expected, rtol=1e-5)
        assert proxy.cuts == len(places) + 1
    finally:
        proxy.close()


def test_a_service_that_is_gone_or_never_answers_is_an_error_that_names_it(start, connect):
    (service,) = start()
    client = connect([service.address], timeout=5.0)
    client.create_table(CONFIG)
    service.stop()
    begin = time.monotonic()
    with pytest.raises(UserError, match=rf"{service.address} did not answer `pull` within 5 s"):
        pulled(client, "t", np.array([1]))
    assert time.monotonic() - begin >= 4  # It was asked again, for as long as it was to be.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UserError, match=f"{address} did not answer `hello` within 2 s"):
            connect([address], timeout=2.0)


def test_a_restarted_service_is_an_error_that_says_how_to_go_on(start, connect):
    first, second = start(2)
    port = free_port()
    proxies = [CuttingProxy(first.address, port)]
    try:
        client = connect([proxies[0].address])
        client.create_table(CONFIG)
        proxies[0].close()
        proxies.append(CuttingProxy(second.address, port))
        for call in (
            lambda: pulled(client, "t", np.array([1])),
            lambda: client.sync("t", np.array([1]), ones(1), "w", 1),
            lambda: client.stats(),
        ):
            with pytest.raises(UserError, match="was restarted.*Restart the same command"):
                call()
        first.stop()  # Two do not save in one directory.
        other = connect([second.address])
        other.create_table(CONFIG)
        assert other.stats()["tables"]["t"]["rows"] == 0
    finally:
        for proxy in proxies:
            proxy.close()


def test_an_order_of_services_that_is_another_and_no_address_are_refused(start, connect):
    addresses = [service.address for service in start(2)]
    connect(addresses)
    with pytest.raises(UserError, match="is shard [01] of 2 .* the same order on every worker"):
        connect(addresses[::-1])
    with pytest.raises(UserError, match="no address"):
        connect([])


def test_a_client_checks_tables_configurations_and_deltas(client):
    with pytest.raises(UserError, match="'u': this client has not created it"):
        pulled(client, "u", np.array([1]))
    with pytest.raises(UserError, match="seed = 5, not 6"):
        client.create_table(dataclasses.replace(CONFIG, seed=6))
    with pytest.raises(UserError, match=r"table t: deltas float16\[1, 3\], expected float32\[1, 3\]"):
        client.sync("t", np.array([1]), ones(1).astype(np.float16), "w", 1)


def test_restore_onto_another_number_of_shards_gives_the_same_rows(start, connect, data_dir):
    config = TableConfig("t", (2, 1), (0.1, 0.0), "adagrad")
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 3000)
    deltas = np.random.default_rng(1).standard_normal((3000, config.width)).astype(np.float32)
    expected, path, files = None, None, None
    for number, shards in enumerate((2, 1)):
        client = connect([service.address for service in start(shards)])
        client.create_table(config)
        if files is None:
            client.sync("t", keys, deltas, "w", 1)
            expected = pulled(client, "t", keys)
        else:
            client.sync("t", np.array([7]), np.ones((1, config.width), np.float32), "w", 1)
            client.restore(path, files)
        np.testing.assert_array_equal(pulled(client, "t", keys, missing="zeros"), expected)
        assert client.stats()["tables"]["t"]["rows"] == 3000
        path = data_dir / f"restore-{number}"
        files = client.save(path, step=number)
        assert [file["file"] for file in files] == [f"t-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
        assert sum(file["rows"] for file in files) == 3000
    client.restore(path, [])
    assert client.stats()["tables"]["t"]["rows"] == 0


def test_what_is_pushed_once_a_save_has_begun_is_not_in_it(start, connect, data_dir):
    client = connect([service.address for service in start(2)])
    client.create_table(CONFIG)
    keys = np.arange(1, 5000)
    client.sync("t", keys, ones(len(keys)), "w", 1)
    before = pulled(client, "t", keys)
    finish = client.begin_save(data_dir / "begun", 1)
    client.sync("t", np.arange(2000, 7000), ones(5000), "w", 2)
    after = pulled(client, "t", np.arange(1, 7000))
    full = finish()
    finish = client.begin_save(data_dir / "begun", 2, full[0]["snapshot"])
    client.sync("t", keys, ones(len(keys)), "w", 3)
    delta = finish()
    client.restore(data_dir / "begun", full)
    np.testing.assert_array_equal(pulled(client, "t", keys), before)
    assert client.stats()["tables"]["t"]["rows"] == len(keys)
    client.restore(data_dir / "begun", full + delta)
    np.testing.assert_array_equal(pulled(client, "t", np.arange(1, 7000)), after)


def test_rows_are_read_while_the_shards_write_an_epoch(start, connect, data_dir, monkeypatch):
    client, writing, ends = connect([service.address for service in start(2)]), threading.Barrier(3), threading.Event()
    client.create_table(CONFIG)
    client.sync("t", np.arange(1, 100), ones(99), "w", 1)

    def slow(action, name, body):
        if name == "publish":
            writing.wait(60)
            ends.wait(60)
        return action(name, body)

    for each in client._shards:
        monkeypatch.setattr(each, "action", functools.partial(slow, each.action))
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        epoch = threads.submit(client.publish, data_dir / "epoch", 1, "float32")
        try:
            writing.wait(60)
            assert threads.submit(pulled, client, "t", np.arange(1, 100)).result(30).shape == (99, CONFIG.width)
        finally:
            ends.set()
        assert sum(file["rows"] for file in epoch.result(60)) == 99


def test_shards_that_all_lack_the_base_of_a_delta_write_all_rows_once(start, connect, data_dir, monkeypatch):
    client = connect([service.address for service in start(2)])
    begin, begun = client._shards[0].begin_save, []
    monkeypatch.setattr(client._shards[0], "begin_save", lambda body: begun.append(body) or begin(body))
    client.create_table(CONFIG)
    client.sync("t", np.arange(1, 100), ones(99), "w", 1)
    files = client.save(data_dir / "all", 1, since="a snapshot that no shard has")
    assert {file["since"] for file in files} == {None} and sum(file["rows"] for file in files) == 99
    assert len(begun) == 1


def test_a_service_that_is_killed_while_it_saves_is_lost(start, connect, data_dir):
    (service,) = start(is_warm=False)
    client = connect([service.address])
    client.create_table(CONFIG)
    client.sync("t", np.arange(1, 500_001), ones(500_000), "w", 1)
    finish = client.begin_save(data_dir / "killed", 1)
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(ServiceLost, match=f"embedding service {service.address} (has ended|aborted `save`)"):
        finish()
    assert list((data_dir / "killed").glob("*.arrow")) == []


def test_a_snapshot_outside_of_the_services_directory_is_refused(client, data_dir, tmp_path):
    for path in (tmp_path, data_dir / ".." / "elsewhere"):
        with pytest.raises(UserError, match="outside the service's data_dir"):
            client.save(path, step=1)
    (data_dir / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="outside the service's data_dir"):
        client.save(data_dir / "link", step=1)
    assert list(tmp_path.iterdir()) == []


def test_a_silent_service_is_named_and_its_silence_is_added_up(start, connect, monkeypatch, caplog):
    monkeypatch.setattr(shard, "LIMIT_SECONDS", 3.0)
    (service,) = start(is_warm=False)
    said, began = f"s for the embedding service {service.address} to answer `pull`", time.monotonic()
    client = connect([service.address])
    client.create_table(CONFIG)
    pulled(client, "t", np.array([1]))
    assert client.silent_seconds == 0
    launch.stand_still(service.pid)
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            pulls = [threads.submit(pulled, client, "t", np.array([1])) for _ in range(2)]
            launch.wait_until(lambda: said in caplog.text, "the warning", 60)
            assert not any(pull.done() for pull in pulls)
            os.kill(service.pid, signal.SIGCONT)
            assert all(len(pull.result(60)) == 1 for pull in pulls)
    finally:
        os.kill(service.pid, signal.SIGCONT)
    (line,) = [message for message in caplog.messages if said in message][:1]
    assert "it, its host or the network hangs" in line
    assert 3 < client.silent_seconds < time.monotonic() - began  # Both pulls waited, and each second counts once.
