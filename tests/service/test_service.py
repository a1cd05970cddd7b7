import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

from ctr_trainer.embedding.service import client as clients
from ctr_trainer.embedding.service import service as services
from ctr_trainer.embedding.service import shard, wire
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalService, Watch
from ctr_trainer.embedding.service.security import ClientSecurity, ServerSecurity
from ctr_trainer.embedding.service.service import Service
from ctr_trainer.embedding.service.serving import serve
from ctr_trainer.embedding.service.shard import Shard
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store import local_store
from ctr_trainer.embedding.table import row_limits
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.installation import compile_kernels
from ctr_trainer.system.messages.errors import Lost, ServiceLost, UserError, is_loss
from ctr_trainer.system.processes import child, hardware
from tests.parallel import launch
from tests.ports import free_port
from tests.rows import pulled
from tests.service.conftest import CONFIG, LEASE, TIMEOUT, TOKEN, ones

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path):
    """(a raw Flight client, the store behind it) of a service in this process, over a real socket."""
    with Service("127.0.0.1", 0, tmp_path) as service:
        service._store.create_table(CONFIG)
        service._store.sync("t", np.array([5]), ones(1), "w", 1)
        service._leases.take(LEASE)
        with flight.FlightClient(f"grpc://127.0.0.1:{service.port}") as client:
            yield client, service._store


def _request(client, op="put", columns=None, **changes):
    """Makes a row request, by default a put of ones to the row of key 5. -> the JSON object of its answer"""
    request = dict(table="t", worker="w", sequence=2, lease=LEASE.token)
    body = wire.pack(request | changes, columns or [np.array([5]), ones(1)])
    return _send(client, op, body)


def _send(client, op, body):
    header, *_ = client.do_action(flight.Action(op, body), flight.FlightCallOptions(timeout=TIMEOUT))
    return json.loads(header.body.to_pybytes())


_KEY, _VERSION = np.array([5]), np.array([0], np.uint32)


@pytest.mark.parametrize(
    ("op", "columns", "changes", "message"),
    [
        ("put", None, {"table": "x"}, "no table 'x'"),
        ("put", None, {"sequence": "x"}, "bad request"),
        ("put", None, {"lease": "other"}, "`put` refused: this client only reads"),
        ("put", [_KEY, np.ones((1, 4), np.float32)], {}, r"1 rows of <i8, <f4\[3\] are \d+"),
        ("put", [_KEY, np.ones((1, 2), np.float32)], {}, r"1 rows of <i8, <f4\[3\] are more: the request was cut off"),
        ("put", [_KEY], {}, "are more"),
        ("put", [_KEY, np.array([[1, np.nan, 1]], np.float32)], {}, "key 5 is not finite"),
        ("put", [np.array([0]), ones(1)], {}, "key 0"),
        ("sync", None, {}, r"<i8, <u4, <f4\[3\] are more"),
        ("pull", [_KEY], {}, "<i8, <u4 are more"),
        ("put", None, {"memory": "x", "bytes": 64}, "bad request"),
        ("put", None, {"memory": "999999999/0123456789ab", "bytes": 64}, "cannot open the memory"),
        ("put", None, {"memory": "999999999/0123456789ab"}, "lacks 'bytes'"),
    ],
)
def test_a_bad_request_is_an_invalid_argument_and_harmless(server, op, columns, changes, message):
    client, store = server
    before = store.tables["t"].stored.copy()
    with pytest.raises(pa.ArrowInvalid, match=message):
        _request(client, op, columns, **changes)
    np.testing.assert_array_equal(store.tables["t"].stored, before)
    assert _request(client) == {"count": 1}
    np.testing.assert_array_equal(store.tables["t"].stored, np.ones_like(before))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "a row request of 0 bytes"),
        (b"\xff\xff\xff\xff{}", "it was cut off"),
        (b"\x01\0\0\0\xff", "not JSON"),
        (b"\x03\0\0\0[1]", "not a JSON object"),
        (b"\x02\0\0\0{}", "lacks 'table'"),
        (b'\x1a\0\0\0{"table": "t", "count":-1}', "not a number of rows"),
    ],
)
def test_bytes_that_are_no_row_request_are_an_invalid_argument(server, body, message):
    with pytest.raises(pa.ArrowInvalid, match=message):
        _send(server[0], "pull", body)


def test_refused_row_requests_are_counted_by_tables_that_exist(tmp_path):
    with Service("127.0.0.1", 0, tmp_path) as service:
        service._store.create_table(CONFIG)
        service._leases.take(LEASE)
        with flight.FlightClient(f"grpc://127.0.0.1:{service.port}") as client:
            wide = [_KEY, np.ones((1, 4), np.float32)]
            for changes in ({"lease": "x"}, {"columns": wide}, {"incarnation": "x.0"}, {"table": "made up"}):
                with pytest.raises((pa.ArrowInvalid, flight.FlightServerError)):
                    _request(client, **changes)
            _request(client)
        samples = next(iter(service.metrics._failures.collect())).samples
        counted = {each.labels["table"]: each.value for each in samples if each.name.endswith("_total")}
        assert counted == {"t": 3, "": 1}
        assert service.metrics.requests() == {"put": 1}


def test_an_oversized_request_is_refused_and_one_whose_answer_would_be(server, monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    client, store = server
    with pytest.raises(pa.ArrowInvalid, match="a request of more than 1000 bytes"):
        _request(client, columns=[np.arange(1, 101), ones(100)])
    with pytest.raises(pa.ArrowInvalid, match="the answer for 50 keys could have more than 1000 bytes"):
        _request(client, "pull", [np.arange(1, 51), np.zeros(50, np.uint32)])
    assert len(store.tables["t"]) == 1


def test_a_small_request_takes_little_memory_whatever_it_asks_for(tmp_path):
    """The keys of a table with long rows: 98 kB took 3.2 GiB of the service."""
    long_rows = TableConfig("long", (65536,), (0.1,), "sgd")
    with LocalService(tmp_path, tmp_path / "log", TIMEOUT) as service:
        client = ServiceClient([service.address], TIMEOUT, ClientSecurity(service.token), LEASE)
        raw = flight.FlightClient(f"grpc://{service.address}")
        with contextlib.closing(client), raw:
            client.create_table(long_rows)
            pulled(client, "long", np.array([1]))
            before = _peak_mib(service.pid)
            options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {service.token}".encode())])
            keys = np.arange(1, 12_001)
            with pytest.raises(pa.ArrowInvalid, match="the answer for 12000 keys could have more"):
                body = wire.pack(dict(table="long"), [keys, np.zeros(len(keys), np.uint32)])
                list(raw.do_action(flight.Action("pull", body), options))
            assert pulled(client, "long", keys[:300]).shape == (300, 65536)  # It asks for a page at a time.

            assert _peak_mib(service.pid) - before < 200


def _peak_mib(pid):
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("drop", {}, "no action 'drop'"),
        ("create_table", {}, "lacks 'config'"),
        ("create_table", {"config": "{}"}, "not a table's configuration"),
        ("save", {"path": "a", "step": 1}, "say hello first"),
        ("hello", {"shard": 2, "shards": 2}, "no shard 2 of 2"),
        ("hello", {"shard": 0, "shards": 1, "lease": {"token": "x"}}, "not a lease, which has token, process"),
        ("save", {"path": "a", "step": 1, "lease": "x"}, "`save` refused: this client only reads"),
    ],
)
def test_a_bad_action_is_an_invalid_argument(server, name, body, message):
    with pytest.raises(pa.ArrowInvalid, match=message):
        list(server[0].do_action(flight.Action(name, json.dumps({"lease": LEASE.token, **body}).encode())))


def test_any_flight_client_can_list_and_read_the_tables(server):
    client, store = server
    (info,) = client.list_flights()
    assert (info.descriptor.path, info.total_records) == ([b"t"], 1)
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table.column("key").to_pylist() == [5]
    np.testing.assert_array_equal(table.column("row").to_pylist(), store.tables["t"].stored)
    assert snapshot.config_from_json(table.schema.metadata[b"ctr_trainer.table"]) == CONFIG
    with pytest.raises(pa.ArrowInvalid, match="no table 'x'; there are: t"):
        client.do_get(flight.Ticket(b"x"))


def test_a_read_of_rows_that_are_replaced_meanwhile_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(local_store, "_BLOCK_BYTES", 1 << 10)
    keys = np.arange(1, 200_001)  # More than are sent before the client reads.
    with (
        Service("127.0.0.1", 0, tmp_path) as service,
        flight.FlightClient(f"grpc://127.0.0.1:{service.port}") as client,
    ):
        service._store.create_table(CONFIG)
        service._store.sync("t", keys, ones(len(keys)), "w", 1)
        reader = client.do_get(flight.Ticket(b"t"))
        reader.read_chunk()
        with service.incarnation.replaced("restored"):
            pass
        with pytest.raises(flight.FlightServerError, match="replaced: restored"):
            reader.read_all()


def test_a_checkpoint_of_very_many_files_is_restored(tmp_path, connect):
    with Service("127.0.0.1", 0, tmp_path) as service:
        client, keys = connect([f"127.0.0.1:{service.port}"]), np.arange(1, 11)
        client.create_table(CONFIG)
        client.sync("t", keys, ones(10), "w", 1)
        expected, full = pulled(client, "t", keys), client.save(tmp_path, 1)
        delta = client.save(tmp_path, 2, since=full[-1]["snapshot"])
        on_disk = {**full[-1], "file": "t-00000-of-00001.cold.000001.sst", "kind": "cold", "rows": 0, "bytes": 0}
        (tmp_path / on_disk["file"]).touch()
        client.sync("t", keys, ones(10), "w", 2)
        client.restore(tmp_path, [*full, *[on_disk] * 20_000, *delta])
        np.testing.assert_array_equal(pulled(client, "t", keys), expected)


def test_a_long_restore_reports_that_it_continues(tmp_path, connect, monkeypatch):
    monkeypatch.setattr(clients, "_POLL_SECONDS", 0.01)
    with Service("127.0.0.1", 0, tmp_path) as service:
        client, told, restore = connect([f"127.0.0.1:{service.port}"]), threading.Event(), service._store.restore
        client.create_table(CONFIG)
        client.sync("t", np.array([5]), ones(1), "w", 1)
        files = client.save(tmp_path / "saved", 1)
        monkeypatch.setattr(service._store, "restore", lambda *args, **more: told.wait(60) and restore(*args, **more))
        client.restore(tmp_path / "saved", files, lambda text: told.set())
        assert told.is_set() and client.stats()["tables"]["t"]["restored"] == 1


def test_rows_that_expire_at_once_are_evicted_by_several_short_requests(tmp_path, monkeypatch, connect):
    monkeypatch.setattr(row_limits, "_EXPIRED", 20)  # Rows, while the lock is held.
    monkeypatch.setattr(services, "_ADVANCE_SECONDS", 0)
    with Service("127.0.0.1", 0, tmp_path) as service:
        client, keys, answers = connect([f"127.0.0.1:{service.port}"]), np.arange(1, 101), []
        (own,) = client._shards
        monkeypatch.setattr(own, "action", lambda *given: answers.append(Shard.action(own, *given)) or answers[-1])
        client.create_table(dataclasses.replace(CONFIG, ttl_steps=5))
        for step, count in ((1, 100), (9, 30)):
            client.advance(step)
            client.sync("t", keys[:count], ones(count), "w", step)
        assert client.stats()["tables"]["t"]["rows"] == 30
        assert [at for at in answers if isinstance(at, list)] == [["t", slot] for slot in (20, 40, 60, 80)]


def test_a_token_is_needed_for_every_call(tmp_path, connect):
    with Service("127.0.0.1", 0, tmp_path, ServerSecurity("right")) as service:
        address = f"127.0.0.1:{service.port}"
        for token, wrong in (
            (None, "requires a token, and the request has none"),
            ("wrong", "the token is wrong"),
            ("rightish", "wrong"),
        ):
            with pytest.raises(UserError, match=f"{address}: .*{wrong}"):
                connect([address], security=ClientSecurity(token))
        with flight.FlightClient(f"grpc://{address}") as client, pytest.raises(flight.FlightUnauthenticatedError):
            list(client.list_flights())
        client = connect([address], security=ClientSecurity("right"))
        client.create_table(CONFIG)
        np.testing.assert_array_equal(pulled(client, "t", np.array([1]), missing="zeros"), [[0, 0, 0]])


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        *((bind, "token_file") for bind in ("0.0.0.0:0", "192.0.2.1:7700", "example.org:1")),
        *((bind, "expected host:port") for bind in ("127.0.0.1", ":7700", "127.0.0.1:http")),
    ],
)
def test_an_address_that_is_none_or_off_this_machine_without_a_token_is_refused(tmp_path, bind, message):
    with pytest.raises(UserError, match=message):
        serve(bind, tmp_path)


def test_a_local_service_needs_its_token_and_ends_with_its_block(tmp_path):
    with LocalService(tmp_path, tmp_path / "log", TIMEOUT) as service:
        for token in (None, service.token[1:]):
            with pytest.raises(UserError, match="token"):
                ServiceClient([service.address], TIMEOUT, ClientSecurity(token))
        ServiceClient([service.address], TIMEOUT, ClientSecurity(service.token)).close()
        # What other users see of a process, and what other processes of this user are given.
        for name in ("cmdline", "environ"):
            assert service.token.encode() not in pathlib.Path(f"/proc/{service.pid}/{name}").read_bytes()
        assert not any(service.token in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert service._process.returncode == 0  # Ended by SIGTERM, and with it its address.


def test_an_empty_or_missing_token_is_refused_and_one_in_the_clear_warned_of(tmp_path, caplog):
    (tmp_path / "token").write_text("\n")
    with pytest.raises(UserError, match="token is empty"):
        ServerSecurity.read(tmp_path / "token")
    with pytest.raises(UserError, match="No such file"):
        ServerSecurity.read(tmp_path / "none")
    ServerSecurity("token").refuse_open_door("127.0.0.1")
    assert not caplog.text
    ServerSecurity("token").refuse_open_door("0.0.0.0")
    assert "the token and all rows travel in the clear" in caplog.text
    assert len(caplog.records) == 1


def test_the_service_ends_when_its_parent_is_killed(tmp_path):
    code = (
        "import sys, time; from ctr_trainer.embedding.service.local_service import LocalService;"
        f"print(LocalService({str(tmp_path)!r}, {str(tmp_path / 'log')!r}, {TIMEOUT}).pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=launch.ROOT, stdout=subprocess.PIPE) as parent:
        try:
            service = psutil.Process(int(parent.stdout.readline()))
            assert service.is_running()
        finally:
            parent.kill()
    psutil.wait_procs([service], TIMEOUT)
    assert not service.is_running() or service.status() == psutil.STATUS_ZOMBIE


def test_a_service_that_cannot_start_shows_its_log(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"(?s)ended with status \d+.*log ends with.*file") as raised:
        LocalService(tmp_path / "file", tmp_path / "log", TIMEOUT)
    assert not is_loss(raised.value)


def test_workers_of_launch_wait_for_a_running_shard_that_others_do_not_wait_for(monkeypatch, tmp_path, connect):
    monkeypatch.setattr(shard, "_FIRST_ANSWER_SECONDS", 0.1)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServiceLost, match="did not answer `hello` within 0.1 s"):
        connect([address])
    found = []
    lease = dataclasses.replace(LEASE, job="job")
    waiting = threading.Thread(target=lambda: found.append(connect([address], lease=lease)))
    waiting.start()
    with contextlib.closing(open(tmp_path / "log", "ab")) as log:
        command = ["serve", f"--bind={address}", f"--data_dir={tmp_path}"]
        command = [sys.executable, "-m", "ctr_trainer", *command]
        told = {**os.environ, child.CHILD: json.dumps({"sends_token": True})}
        again = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=told)
        again.stdin.write(f"{TOKEN}\n".encode())
        again.stdin.flush()
        try:
            waiting.join(TIMEOUT)
            assert found and again.poll() is None
        finally:
            again.stdin.close()
            again.wait(TIMEOUT)


def test_a_service_that_ended_is_noticed_at_once_with_its_status_and_log(tmp_path, connect):
    with LocalService(tmp_path, tmp_path / "log", TIMEOUT, TOKEN) as service:
        with contextlib.closing(Watch(service.pid, tmp_path / "log")) as other:
            # The timeout is far beyond that of the test: who waited for it would not come back.
            watching = {each: connect([service.address], 1e6, ended=[each.ended]) for each in (service, other)}
            for each, client in watching.items():
                client.create_table(CONFIG)
                assert each.ended() is None
                client.look()
            os.kill(service.pid, signal.SIGKILL)
            for each, status in ((service, "status -9"), (other, f"process {service.pid} has ended")):
                with pytest.raises(ServiceLost, match=rf"(?s){service.address} has ended: .*{status}.*answers on"):
                    pulled(watching[each], CONFIG.name, np.array([1]))
                with pytest.raises(ServiceLost, match=rf"(?s){service.address} has ended: .*{status}"):
                    watching[each].look()


def test_a_service_that_does_nothing_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalService, "_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"])
    pids = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: pids.append(popen(*args, **options)) or pids[-1])
    with pytest.raises(Lost, match="the embedding service does not answer, and has done nothing for 0.5 s"):
        LocalService(tmp_path, tmp_path / "log", 0.5)
    assert pids[0].returncode == -signal.SIGTERM


def test_a_start_that_works_for_longer_than_the_limit_is_waited_for(tmp_path, monkeypatch):
    """As the first start does, which compiles the kernels."""
    timeout, serve = 5.0, LocalService._command
    works = (
        f"import sys, time\nwhile time.process_time() < {timeout} + 0.5: pass\n"
        "from ctr_trainer import cli\nsys.exit(cli.main(sys.argv[1:]))"
    )
    monkeypatch.setattr(LocalService, "_command", lambda *given: [sys.executable, "-c", works, *serve(*given)[3:]])
    with LocalService(tmp_path, tmp_path / "log", timeout) as service:
        assert sum(psutil.Process(service.pid).cpu_times()[:2]) > timeout
        assert "answers on" in (tmp_path / "log").read_text()


def test_make_install_compiles_all_kernels_that_the_service_imports():
    """It imports the modules of `compile_kernels`, which compiles what has a signature, and no other has one."""
    code = (
        "import json, sys; import ctr_trainer.embedding.service.serving; "
        "from numba.core.registry import CPUDispatcher; "
        "print(json.dumps([name for name, module in sys.modules.items() for each in vars(module).values() "
        "if isinstance(each, CPUDispatcher) and each.py_func.__module__ == name and name.startswith('ctr_trainer')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=launch.ROOT, stdout=subprocess.PIPE, check=True)
    found = {name.rpartition(".")[2] for name in json.loads(done.stdout)}
    assert {"index_kernels", "row_kernels", "optimizer_kernels"} <= found
    assert found <= {name.rpartition(".")[2] for name in compile_kernels.modules()}


def test_the_log_has_the_latencies(tmp_path):
    code = (
        "import ctr_trainer.embedding.service.serving as s; s._STATUS_SECONDS = 0.2;"
        f"s.serve('127.0.0.1:0', {str(tmp_path)!r}, exit_with_stdin=True)"
    )
    pipes = dict(stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], cwd=launch.ROOT, **pipes) as process:
        lines = [process.stderr.readline() for _ in range(4)]
        process.stdin.close()
    assert "answers on 127.0.0.1:" in lines[0]
    assert "[RunStatus]: all in microseconds" in lines[1]
    assert "[RunStatus]: PsEmbeddingLookup statistics => count: 0  P50: 0" in lines[2]
    assert "[RunStatus]: PsPushGrad statistics => count: 0" in lines[3]


def test_files_of_rows_are_written_behind_the_requests(tmp_path, monkeypatch):
    found, write = [], local_store.snapshot_writer.write

    def noted(*arguments):
        found.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getaffinity(0)))
        return write(*arguments)

    monkeypatch.setattr(local_store.snapshot_writer, "write", noted)
    one = {min(os.sched_getaffinity(0))}
    with Service("127.0.0.1", 0, tmp_path, file_cores=one) as service:
        with contextlib.closing(
            ServiceClient([f"127.0.0.1:{service.port}"], TIMEOUT, ClientSecurity(), LEASE)
        ) as client:
            client.create_table(CONFIG)
            client.sync("t", np.array([5]), ones(1), "w", 1)
            files = client.save(tmp_path / "snapshot", 1)
    assert [file["rows"] for file in files] == [1]
    assert found == [(min(os.getpriority(os.PRIO_PROCESS, 0) + hardware.BEHIND, 19), one)]


def test_an_outage_of_the_store_that_a_service_saves_to_is_a_loss(connect, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with Service("127.0.0.1", 0, tmp_path, security=ServerSecurity(TOKEN)) as service:
        client = connect([f"127.0.0.1:{service.port}"])
        client.create_table(CONFIG)
        monkeypatch.setattr(service, "_inside", path_of)
        with pytest.raises(Lost, match="cannot be written"):
            client.save("s3://tests/x?endpoint_override=127.0.0.1:1&scheme=http", 1)
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError) as raised:
            client.save(str(tmp_path / "file" / "x"), 1)
        assert not is_loss(raised.value)
