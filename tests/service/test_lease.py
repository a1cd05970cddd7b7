"""Who may write to a shard, and what becomes of those who did before: real clients over a real socket."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.lease import LeaseBook, LeaseHeld
from ctr_trainer.embedding.service.service import Service
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import ServiceLost, UserError
from tests.rows import pulled
from tests.service.conftest import CONFIG, LEASE, TIMEOUT, ones

pytestmark = pytest.mark.integration
KEYS = np.arange(1, 4)


@pytest.fixture
def service(tmp_path):
    """A service in this process, whose lease ends after 5 s of silence."""
    with Service("127.0.0.1", 0, tmp_path, leases=LeaseBook(seconds=5.0)) as service:
        yield service


@pytest.fixture
def open_client(service):
    """open_client(lease) -> a client of the service, closed with the test."""
    with contextlib.ExitStack() as stack:

        def open_client(lease):
            client = ServiceClient([f"127.0.0.1:{service.port}"], TIMEOUT, lease=lease)
            stack.callback(client.close)
            return client

        yield open_client


@pytest.fixture
def trainer(open_client):
    """A client that holds the lease, with three rows in the table `t`."""
    client = open_client(LEASE)
    client.create_table(CONFIG)
    client.sync("t", KEYS, ones(3), "w", 1)
    return client


def test_a_client_without_the_lease_may_only_read_and_copy(trainer, open_client, service, tmp_path):
    reader, before = open_client(None), pulled(trainer, "t", KEYS)
    files = trainer.save(tmp_path / "saved", 1)
    writes = {
        "put": lambda: reader.put("t", KEYS, ones(3), "w", 2),
        "sync": lambda: reader.sync("t", KEYS, ones(3), "w", 2),
        "create_table": lambda: reader.create_table(CONFIG),
        "advance": lambda: reader.advance(9),
        "save": lambda: reader.save(tmp_path / "other", 1),
        "restore": lambda: reader.restore(tmp_path / "saved", files),
    }
    np.testing.assert_array_equal(pulled(reader, "t", KEYS), before)
    for name, write in writes.items():
        with pytest.raises(UserError, match=f"`{name}` refused: this client only reads.*the training of tests"):
            write()
    unknown = np.arange(10, 20)
    assert pulled(reader, "t", unknown).shape == (10, CONFIG.width)
    assert len(reader.pull("t", unknown, np.zeros(10, np.uint32)).positions) == 0
    assert len(service._store.tables["t"]) == 3
    np.testing.assert_array_equal(pulled(trainer, "t", KEYS), before)
    assert [entry["rows"] for entry in reader.copy(tmp_path / "copy")] == [3]
    trainer.save(tmp_path / "checkpoint", 1)
    saved = {path: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()}
    with pytest.raises(UserError, match="exists already, and a copy replaces no file"):
        reader.copy(tmp_path / "checkpoint")
    with flight.connect(f"grpc://127.0.0.1:{service.port}") as raw, pytest.raises(pa.ArrowInvalid, match="replaces no"):
        body = {"path": str(tmp_path / "checkpoint"), "shard": 1, "shards": 2}  # The service knows its own place.
        list(raw.do_action(flight.Action("copy", json.dumps(body).encode())))
    assert {path: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == saved


def test_a_reader_that_comes_first_does_not_say_which_shard_a_service_is(open_client, service):
    with contextlib.closing(ServiceClient([f"127.0.0.1:{service.port}"], TIMEOUT)) as reader:
        assert reader.tables() == []
    other = LEASE.parse({**vars(LEASE)})
    body = {"shard": 1, "shards": 2, "lease": vars(other)}
    assert service._hello(body)["incarnation"] == str(service.incarnation)


def test_a_second_training_is_refused_until_the_first_gives_its_lease_back(trainer, open_client):
    with pytest.raises(UserError, match=rf"by the training of tests \(process {LEASE.process} on host .* since 2"):
        begin = time.monotonic()
        while time.monotonic() < begin + TIMEOUT:  # The first is at work, and the second looks after a second.
            _beside(lambda: open_client(Owner.new("second")), lambda: trainer.sync("t", KEYS, ones(3), "w", 1))
    assert trainer.stats()["tables"]["t"]["rows"] == 3
    trainer.release()
    with pytest.raises(UserError, match="`sync` refused: this client only reads.*no training holds the lease now"):
        trainer.sync("t", KEYS, ones(3), "w", 2)
    open_client(Owner.new("second")).create_table(CONFIG)


def _beside(call, other):
    """Makes a call while another is made again and again."""
    end = threading.Event()

    def work():
        while not end.wait(0.05):
            other()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        call()
    finally:
        end.set()
        thread.join()


def test_the_lease_of_a_killed_training_ends_while_the_next_one_waits(service, caplog):
    code = (
        "import time; from ctr_trainer.embedding.service import client;"
        "from ctr_trainer.system.files.lease import Owner;"
        f"client = client.ServiceClient(['127.0.0.1:{service.port}'], 60, lease=Owner.new('killed'));"
        "print('here', flush=True); time.sleep(600)"
    )
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert first.stdout.readline() == b"here\n"
    finally:
        first.kill()
        first.communicate()
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING):
        client = ServiceClient([f"127.0.0.1:{service.port}"], TIMEOUT, lease=Owner.new("next"))
    client.close()
    assert time.monotonic() - begin < 30
    assert f"was used by the training of killed (process {first.pid} on" in caplog.text


def test_a_silent_training_continues_unless_another_has_taken_over(trainer, open_client, service):
    trainer._lease.close()
    service._leases._heard -= 5.0  # As if it had been silent for so long.
    trainer.sync("t", KEYS, ones(3), "w", 2)  # The lease had ended, and nobody wanted it.
    service._leases._heard -= 5.0  # As if it had been silent for so long.
    open_client(Owner.new("second"))
    for call in (
        lambda: trainer.sync("t", KEYS, ones(3), "w", 3),
        lambda: trainer.sync("t", KEYS, ones(3), "w", 3),
        lambda: pulled(trainer, "t", KEYS),
        lambda: trainer.advance(5),
    ):
        with pytest.raises(ServiceLost, match=r"has other rows now: the training of second .*has taken.* over"):
            call()


def test_who_knew_the_rows_of_before_a_restore_is_told_until_it_opens_them_anew(trainer, open_client, tmp_path):
    files = trainer.save(tmp_path / "saved", 1)
    other, reader = open_client(LEASE), open_client(None)
    other.create_table(CONFIG)
    (damaged,) = trainer.save(tmp_path / "damaged", 1)
    (tmp_path / "damaged" / damaged["file"]).write_bytes(b"")
    with pytest.raises(UserError, match="truncated"):  # Which leaves the rows to those who know them.
        trainer.restore(tmp_path / "damaged", [damaged])
    saved = pulled(other, "t", KEYS, missing="zeros")
    other.sync("t", KEYS, ones(3), "x", 1)
    trainer.restore(tmp_path / "saved", files)
    for call in (
        lambda: other.sync("t", KEYS, ones(3), "x", 2),
        lambda: other.sync("t", KEYS, ones(3), "x", 3),
        lambda: pulled(other, "t", KEYS),
        lambda: other.pull("t", KEYS, np.zeros(3, np.uint32)),
        lambda: pulled(reader, "t", KEYS),
    ):
        with pytest.raises(ServiceLost, match="has other rows now: the training of tests .* has restore"):
            call()
    np.testing.assert_array_equal(pulled(trainer, "t", KEYS, missing="zeros"), saved)
    other.reopen()
    other.sync("t", KEYS, ones(3), "x", 4)


def test_a_restart_of_the_workers_takes_the_lease_over_at_once():
    book = LeaseBook(seconds=60)
    first, second, other = (Owner.new("model", job) for job in ("job", "job", "other"))
    assert book.take(first)
    with pytest.raises(LeaseHeld):
        book.take(other)
    assert book.take(second) and book.is_only_job(second) and not book.is_only_job(other)
    with pytest.raises(UserError, match="this client only reads"):
        book.renew(first.token, "sync")
    book.renew(second.token, "sync")
    with pytest.raises(LeaseHeld):
        book.take(Owner.new("model"))  # Of a training without a launcher.
