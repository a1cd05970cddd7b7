"""Redis or Valkey Streams as a source, on a real server."""

import contextlib
import json
import socket
import threading
import time

import pytest

from ctr_trainer import cli
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.figures import Figures
from ctr_trainer.live.stream.opening import dead_letters, opener
from ctr_trainer.live.stream.plan import StreamPosition
from ctr_trainer.live.stream.planner import Planner
from ctr_trainer.live.stream.redis_streams import connected
from ctr_trainer.live.stream.source import DeadLetters, Range, StreamAddress, Unavailable
from ctr_trainer.settings.training_configs import RedisFiles, StreamConfig
from ctr_trainer.system.messages.errors import UserError
from tests.stream import brokers
from tests.stream.test_reader import TOML, Workers, records, spec  # noqa: F401, a fixture


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Gives a client and the address of a server."""
    with brokers.redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


def add(client, key, values):
    for value in values:
        client.xadd(key, {"value": json.dumps(value)})


def test_workers_share_a_stream_of_one_key_and_resume(server, spec):  # noqa: F811
    client, address = server
    add(client, "clicks", records(0, 203))
    url = f"redis://{address}/clicks"
    first = Workers(url, spec, 2, batches=5).finish()
    assert not first.errors and len(first.trained) == 80
    rest = Workers(url, spec, 3, position=first.position).finish()
    assert sorted(first.trained + rest.trained) == list(range(203))


def test_numbered_keys_are_partitions_and_fields_may_be_columns(server, spec):  # noqa: F811
    client, address = server
    for number, record in enumerate(records(0, 60)):
        client.xadd(f"views:{number % 3}", {name: str(value) for name, value in record.items()})
    workers = Workers(f"redis://{address}/views", spec, 2).finish()
    assert not workers.errors and workers.trained == list(range(60)) and len(workers.position.next) == 3


def test_positions_are_told_to_the_group_and_bad_entries_go_to_a_stream(server, spec):  # noqa: F811
    client, address = server
    add(client, "orders", [*records(0, 10), {"user": 1}])
    url = f"redis://{address}/orders?dead_letters=orders:bad"
    config = StreamConfig(until="latest", max_bad_rows=1)
    letters = dead_letters(StreamAddress.parse(url), "", RedisFiles(), None)
    workers = Workers(url, spec, config=config, letters=letters).finish()
    (entry,) = client.xrange("orders:bad")
    assert json.loads(entry[1][b"value"])["reason"].startswith("column 'clicked'")
    with contextlib.closing(opener(StreamAddress.parse(url), "", RedisFiles(), "group")()) as source:
        source.commit(workers.position.trained())
    last = client.xrevrange("orders", count=1)[0][0]
    assert client.xinfo_groups("orders")[0]["last-delivered-id"] == last


def test_a_refused_password_ends_the_start_and_names_the_setting(server, spec, tmp_path):  # noqa: F811
    client, address = server
    add(client, "guarded", records(0, 10))
    client.acl_setuser("ann", enabled=True, passwords=["+right"], keys=["*"], commands=["+@all"])
    for password in ("right", "wrong"):
        (tmp_path / password).write_text(f"ann:{password}\n")
        redis = RedisFiles(redis_auth_file=str(tmp_path / password))
        workers = Workers(f"redis://{address}/guarded", spec, redis=redis).finish()
        if password == "right":
            assert workers.trained == list(range(10)) and not workers.errors
        else:
            assert "Correct the user and the password in the file that redis_auth_file names" in workers.errors[0]


def test_a_stream_of_bad_entries_that_does_not_answer_is_tried_once_a_minute(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("ctr_trainer.live.stream.redis_streams._SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = StreamAddress.parse(f"redis://127.0.0.1:{silent.getsockname()[1]}/orders?dead_letters=bad")
        letters, since = dead_letters(url, "", RedisFiles(), str(tmp_path)), time.monotonic()
        for number in range(20):
            letters.write([{"offset": number}])
        assert 0.5 <= time.monotonic() - since < 10  # Twenty attempts would take as long.
    kept = [json.loads(line) for line in (tmp_path / "dead_letters.jsonl").read_text().splitlines()]
    assert [each["offset"] for each in kept] == list(range(20))
    assert "1 bad records did not reach bad and are kept in" in caplog.text


@pytest.mark.parametrize("hosts", ["localhost", "localhost, other:7", "[::1]", "red_is"])
def test_an_address_without_a_port_has_the_port_of_redis(hosts):
    address = StreamAddress.parse(f"redis://{hosts}/clicks")
    with contextlib.closing(connected(address.scheme, address.hosts, RedisFiles())) as client:
        found = client.get_connection_kwargs()
    assert (found["host"], found["port"]) == (hosts.strip("[]").partition(",")[0], 6379)


_NOT_HOSTS = ["localhost:", "localhost:redis", "", ":6379", "a:1,", "ann:secret@host:6379"]
_NOT_HOSTS += ["h:0", "h:70000", "[h", "[ab]", "h#x", "h h"]


@pytest.mark.parametrize("hosts", _NOT_HOSTS)
def test_an_address_that_is_not_a_host_is_refused_without_its_password(hosts):
    with pytest.raises(UserError, match="expected kafka://host:port,host:port/TOPIC or redis://host:port/KEY") as found:
        StreamAddress.parse(f"redis://{hosts}/clicks")
    assert "secret" not in str(found.value)


def test_a_taken_metrics_port_is_named_before_the_stream_is_opened(tmp_path, capsys):
    (tmp_path / "spec.toml").write_text(TOML)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        data = ["--train_data=redis://localhost:1/clicks", f"--feature_spec={tmp_path / 'spec.toml'}"]
        run = [f"--model_dir={tmp_path / 'model'}", "--model=lr", "--batch_size=8", "--threads=1", "--recipe=none"]
        assert cli.main(["train", *data, *run, f"--metrics_port={port}"]) == 1
    assert f"metrics_port={port}: Address already in use; name a free port" in capsys.readouterr().err
    assert "stream coordinator" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("ids", ["explicit", "automatic"])
def test_a_stream_that_was_made_anew_is_refused(server, spec, ids):  # noqa: F811
    client, address = server
    key = f"anew-{ids}"
    for number, record in enumerate(records(0, 30), 1):
        client.xadd(key, {"value": json.dumps(record)}, id=f"{number}-0")
    first = Workers(f"redis://{address}/{key}", spec).finish()
    assert first.trained == list(range(30))
    client.delete(key)
    for number, record in enumerate(records(100, 160), 1):
        client.xadd(key, {"value": json.dumps(record)}, id=f"{number}-0" if ids == "explicit" else "*")
    (error,) = Workers(f"redis://{address}/{key}", spec, position=first.position).finish().errors
    assert "created again" in error and "partition 0" in error
    assert ("another stream of this name" in error) == (ids == "explicit")


def test_columns_of_entries_that_are_not_utf_8_are_bad_records(server, spec):  # noqa: F811
    client, address = server
    client.xadd("latin", {"user": "Z\xfcrich".encode("latin-1"), "number": "1", "clicked": "1"})
    client.xadd("latin", {"user": "Z\xfcrich", "number": "2", "clicked": "1"})
    config = StreamConfig(until="latest", max_bad_rows=1)
    workers = Workers(f"redis://{address}/latin", spec, config=config).finish()
    assert workers.trained == [2] and workers.position.bad_rows == 1


@pytest.mark.parametrize("kept", [5, 0])
def test_entries_that_were_trimmed_before_they_were_trained_end_the_training(server, spec, kept):  # noqa: F811
    client, address = server
    key = f"short-{kept}"
    add(client, key, records(0, 40))
    url = f"redis://{address}/{key}"
    first, whole = Workers(url, spec, batches=2).finish(), Workers(url, spec).finish()
    client.xtrim(key, maxlen=kept, approximate=False)
    (error,) = Workers(url, spec, position=first.position).finish().errors
    assert "records are lost" in error and f"redis stream {key}, partition 0" in error
    assert not Workers(url, spec, position=whole.position).finish().errors
    anew = StreamPosition.from_dict(first.position.to_dict())
    anew = Workers(url, spec, config=StreamConfig(start="1970-01-01", until="latest"), position=anew).finish()
    assert anew.trained == list(range(40 - kept, 40))


@pytest.mark.parametrize("until", ["", "latest"])
def test_entries_trimmed_between_two_windows_end_the_training(server, until):
    client, address = server
    key = f"burst-{until}"
    add(client, key, records(0, 40))
    connect = opener(StreamAddress.parse(f"redis://{address}/{key}"), "", RedisFiles(), "")
    with contextlib.closing(connect()) as source:
        planner = Planner(source, StreamConfig(until=until), 1, 2, Figures(), time.sleep, connect)
        planner.begin(None)
        assert planner.next({}, 1.0).messages == 16
        add(client, key, records(40, 100))
        client.xtrim(key, maxlen=20, approximate=False)
        with pytest.raises(UserError, match="records are lost"):
            planner.next({}, 1.0)


@pytest.mark.parametrize(("key", "most_bytes", "planned"), [("brief", 1 << 20, 32), ("brief-parts", 1, 11)])
def test_entries_trimmed_after_they_were_planned_end_the_training(server, spec, monkeypatch, key, most_bytes, planned):  # noqa: F811
    monkeypatch.setattr("ctr_trainer.live.stream.reader._MOST_BYTES", most_bytes)
    monkeypatch.setattr("ctr_trainer.live.stream.redis_streams._ENTRIES", 5 if most_bytes == 1 else 5000)
    client, address = server
    add(client, key, records(0, 40))
    add_window = Coordinator._add

    def trimmed(self, window):
        client.xtrim(key, maxlen=30, approximate=False)
        add_window(self, window)

    monkeypatch.setattr(Coordinator, "_add", trimmed)
    workers = Workers(f"redis://{address}/{key}", spec, 2).finish()
    assert f"redis stream {key}: 10 of {planned} records were removed before they were read" in workers.errors[0]
    assert most_bytes == 1 or not workers.trained


def test_a_replica_without_its_primary_is_waited_for(server):
    client, address = server
    add(client, "replicated", records(0, 1))
    with contextlib.closing(
        opener(StreamAddress.parse(f"redis://{address}/replicated"), "", RedisFiles(), "")()
    ) as source:
        assert source.partitions() == [0]
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", 1)
        try:
            with pytest.raises(Unavailable, match="MASTERDOWN|Link with MASTER is down"):
                source.latest([0])
        finally:
            client.replicaof("NO", "ONE")
        assert source.latest([0])[0] > 0


def test_a_backlog_is_estimated_from_the_ids(server):
    client, address = server
    for number in range(1, 1001):
        client.xadd("long", {"value": "{}"}, id=f"{number}-0")
    with contextlib.closing(opener(StreamAddress.parse(f"redis://{address}/long"), "", RedisFiles(), "")()) as source:
        (end,) = source.latest([0]).values()
        assert source.backlog(0, 0, end) == 1000 and source.backlog(0, end, end) == 0
        assert 390 < source.backlog(0, 601 << 64, end) < 410
        client.xtrim("long", maxlen=0)
        assert source.backlog(0, 0, end) == 0


def _open(address, key):
    return contextlib.closing(opener(StreamAddress.parse(f"redis://{address}/{key}"), "", RedisFiles(), "")())


@pytest.mark.parametrize("how", ["trimmed", "deleted"])
def test_trained_entries_that_are_removed_on_a_quiet_stream_are_not_lost(server, how):
    client, address = server
    key = f"quiet-{how}"
    for number in (1, 2, 3):
        client.xadd(key, {"value": "{}"}, id=f"{number}-0")
    with _open(address, key) as source:
        at = source.latest([0])[0]
        if how == "deleted":
            client.xdel(key, "1-0", "2-0", "3-0")
        for number in (4, 5):
            client.xadd(
                key,
                {"value": "{}"},
                id=f"{number}-0",
                minid=f"{number}-0" if how == "trimmed" else None,
                approximate=False,
            )
            texts = source.lost({0: at})
            if number == 4:
                assert texts == {} and source.latest([0])[0] > at
        assert ("records are lost" in texts.get(0, "")) == (how == "trimmed")


def test_a_time_between_two_entries_is_the_offset_of_the_second(server):
    client, address = server
    for milliseconds in (1000, 5000):
        client.xadd("sparse", {"value": "{}"}, id=f"{milliseconds}-1")
    with _open(address, "sparse") as source:
        assert source.at_time([0], 3.0) == {0: 5000 << 64 | 1} and source.at_time([0], 9.0) == source.latest([0])
        client.xdel("sparse", "1000-1")
        assert source.lost(source.at_time([0], 3.0)) == {}


def test_a_window_downloads_few_entries_beyond_its_own(server, monkeypatch):
    client, address = server
    for number in range(4):
        add(client, f"wide:{number}", records(0, 1 if number == 3 else 100))
    monkeypatch.setattr("ctr_trainer.live.stream.redis_streams._ENTRIES", 3)
    found = []
    with _open(address, "wide") as source:
        ask = source._entries
        monkeypatch.setattr(source, "_entries", lambda *place: found.append(ask(*place)) or found[-1])
        planner = Planner(source, StreamConfig(), 1, 2, Figures(), time.sleep, None)
        planner.begin(None)
        window = planner.next({}, 1.0)
        assert window.messages == 16 and [each.partition for each in window.shares[0]] == [0, 1, 2, 3]
        assert sum(map(len, found)) < 60 and max(map(len, found)) == 3
        assert source.count(0, 0, 1 << 120, 50) == 50 and source.count(0, 0, 1 << 120, 1 << 60) == 100
        assert source.after(0, 0, 1 << 120, 100) < source.after(0, 0, 1 << 120, 101) == 1 << 120


def test_pages_of_long_entries_have_few_of_them(server, monkeypatch):
    client, address = server
    monkeypatch.setattr("ctr_trainer.live.stream.redis_streams._PAGE_BYTES", 2000)
    add(client, "long", [*["x" * 5] * 200, *["x" * 500] * 300])
    with _open(address, "long") as source:
        pages = [*map(len, source.read(Range(0, 0, 1 << 120)))]
    assert pages[0] == 100 and sum(pages) == 500 and max(pages) < 200 and set(pages[5:-1]) == {3}


def test_a_key_that_is_gone_is_named(server):
    client, address = server
    for number in range(2):
        add(client, f"gone:{number}", records(0, 3))
    with _open(address, "gone") as source:
        planner = Planner(source, StreamConfig(), 1, 2, Figures(), time.sleep, None)
        planner.begin(None)
        client.delete("gone:1")
        planner._checked -= 60
        with pytest.raises(UserError, match="redis stream gone no longer has partition 1"):
            planner.next({}, 1.0)
    with _open(address, "gone") as source, pytest.raises(UserError, match="gone no longer has partition 1"):
        list(source.read(Range(1, 0, 9)))


def test_a_field_that_an_entry_has_twice_is_a_bad_record(server, spec):  # noqa: F811
    client, address = server
    fields = ["user", "u", "number", "1", "clicked", "1"]
    client.execute_command("XADD", "twice", "*", *fields, "clicked", "0")
    client.execute_command("XADD", "twice", "*", "value", json.dumps(records(7, 8)[0]), "value", "{}")
    client.execute_command("XADD", "twice", "*", *fields)
    config = StreamConfig(until="latest", max_bad_rows=2)
    letters = []
    workers = Workers(f"redis://{address}/twice", spec, config=config, letters=DeadLetters(send=_kept(letters)))
    assert workers.finish().trained == [1] and "'clicked' is there more than once" in letters[0]["reason"]


def _kept(letters):
    return lambda found: (letters.extend(found) or [], "")
