"""Workers share a stream: in threads of this process, on real brokers."""

import contextlib
import dataclasses
import json
import re
import threading
import time
import urllib.request

import numpy as np
import pytest

from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.figures import Figures, serve
from ctr_trainer.live.stream.network import CoordinatorServer, RemoteCoordinator
from ctr_trainer.live.stream.opening import opener
from ctr_trainer.live.stream.plan import Report, StreamPosition, Window
from ctr_trainer.live.stream.reader import StreamReader
from ctr_trainer.live.stream.source import DeadLetters, Range, StreamAddress
from ctr_trainer.settings.training_configs import RedisFiles, StreamConfig
from ctr_trainer.system.messages.errors import UserError
from tests.parallel import launch
from tests.stream import brokers
from tests.stream.test_messages import arrow

TOML = """
name = "clicks"
[label]
column = "clicked"
[[dense]]
columns = ["number"]
[[sparse]]
columns = ["user"]
dim = 4
"""
LATEST = StreamConfig(until="latest")


def records(first, last):
    return [{"user": f"u{n}", "number": n, "clicked": n % 2} for n in range(first, last)]


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "spec.toml").write_text(TOML)
    return FeatureSpec.load(tmp_path / "spec.toml")


@pytest.fixture(scope="module")
def cluster():
    with brokers.mock_cluster() as address:
        yield address


class Workers:
    """Workers that read a stream until its end, or so many batches.

    Attributes:
      numbers: of each rank, the records of each of its batches.
      position: after the batches.
    """

    def __init__(
        self,
        url,
        spec,
        size=1,
        config=LATEST,
        position=None,
        batch_size=8,
        batches=None,
        letters=None,
        kafka_config="",
        redis=None,
    ):
        self._open = opener(StreamAddress.parse(url), kafka_config, redis or RedisFiles(), "group")
        self.figures, letters = Figures(), letters or DeadLetters()
        self._coordinator = Coordinator(self._open, config, position, size, batch_size, letters, self.figures)
        server = CoordinatorServer(self._coordinator, "127.0.0.1", b"key") if size > 1 else None
        self.numbers, self.errors = [[] for _ in range(size)], []
        self._most, self._taken = batches, threading.Barrier(size)

        def work(rank):
            to = self._coordinator if rank == 0 else RemoteCoordinator(("127.0.0.1", server.port), b"key", rank, 60)
            reader = StreamReader(self._open, spec, {}, batch_size, to)
            try:
                with contextlib.closing(iter(reader)) as found:
                    for batch in found:
                        assert np.count_nonzero(batch.weights) == batch.size
                        self.numbers[rank].append(batch.dense[: batch.size, 0].astype(int).tolist())
                        if len(self.numbers[rank]) == self._most:
                            self._taken.wait(60)
                            break
            except UserError as error:
                self.errors.append(str(error))

        self._threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
        for thread in self._threads:
            thread.start()

    def end_after(self, batches):
        """Makes the workers end after so many further batches; returns the number of batches of each."""
        self._most = max(map(len, self.numbers)) + batches
        return self._most

    def finish(self):
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self

    @property
    def position(self):
        found = self._coordinator.position_after(len(self.numbers[0]))
        return StreamPosition.from_dict(json.loads(json.dumps(found.to_dict())))

    @property
    def trained(self):
        return sorted(n for of_rank in self.numbers for batch in of_rank for n in batch)


@pytest.mark.parametrize(("topic", "size", "partitions"), [("one", 1, 3), ("few", 3, 1), ("many", 2, 4)])
def test_each_record_is_in_one_batch_of_one_worker(cluster, spec, topic, size, partitions):
    brokers.produce(cluster, topic, records(0, 403), partitions)
    workers = Workers(f"kafka://{cluster}/{topic}", spec, size).finish()
    assert not workers.errors and workers.trained == list(range(403))
    assert len({len(of_rank) for of_rank in workers.numbers}) == 1
    assert all(sum(map(len, of_rank)) > 403 // size - 8 for of_rank in workers.numbers)
    assert sum(workers.position.next.values()) == workers.position.records == 403


def test_the_first_windows_of_long_messages_are_as_long_as_later_ones(cluster, spec):
    values = [arrow(*records(first, first + 50)) for first in range(0, 20_000, 50)]
    brokers.produce(cluster, "long", values, 2)
    workers = Workers(f"kafka://{cluster}/long", spec, batches=1).finish()
    assert workers.figures.records <= 4 * 8 * 50  # Four windows ahead of eight messages: a message fills a batch.


def test_other_numbers_of_workers_resume_within_a_window(cluster, spec):
    brokers.produce(cluster, "resumed", records(0, 300), 2)
    url, trained, position = f"kafka://{cluster}/resumed", [], None
    for size, batches in ((1, 3), (3, 5), (2, 2), (1, 2), (3, None)):
        workers = Workers(url, spec, size, position=position, batches=batches).finish()
        assert not workers.errors
        trained += workers.trained
        position = workers.position
        assert position.records == len(trained)
    assert sorted(trained) == list(range(300))


def test_a_restart_resumes_within_a_message_of_many_rows(cluster, spec):
    values = [arrow(*records(first, first + 50)) for first in range(0, 200, 50)]
    brokers.produce(cluster, "arrow", values, 1)
    first = Workers(f"kafka://{cluster}/arrow", spec, 2, batches=3).finish()
    assert any(each.row for each in first.position.left)
    rest = Workers(f"kafka://{cluster}/arrow", spec, 1, position=first.position).finish()
    assert sorted(first.trained + rest.trained) == list(range(200))


@pytest.mark.parametrize("scheme", ["kafka", "redis"])
def test_a_window_of_records_that_are_too_large_is_trained_in_parts(cluster, spec, scheme, tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.live.stream.reader._MOST_BYTES", 200)  # About four records.
    monkeypatch.setattr("ctr_trainer.live.stream.kafka._MOST", 4)
    monkeypatch.setattr("ctr_trainer.live.stream.redis_streams._ENTRIES", 5)
    with contextlib.ExitStack() as stack:
        if scheme == "redis":
            client, address = stack.enter_context(brokers.redis_server(tmp_path))
            for number, record in enumerate(records(0, 300)):
                client.xadd(f"large:{number % 2}", {"value": json.dumps(record)})
        else:
            brokers.produce(address := cluster, "large", records(0, 300), 2)
        url, trained, position = f"{scheme}://{address}/large", [], None
        for size, batches in ((2, 3), (1, 7), (3, 2), (2, None)):
            workers = Workers(url, spec, size, position=position, batches=batches).finish()
            assert not workers.errors
            trained, position = trained + workers.trained, workers.position
            assert position.records == len(trained)
        assert sorted(trained) == list(range(300)) and not position.left
        whole = Workers(url, spec).finish()
        assert whole.trained == list(range(300)) and len(whole.numbers[0]) > 45


def test_a_replay_of_one_worker_makes_the_same_batches(cluster, spec, monkeypatch):
    monkeypatch.setattr("ctr_trainer.live.stream.coordinator._REPLAY_REST_SECONDS", 3600.0)
    brokers.produce(cluster, "replayed", records(0, 500), 3)
    first, second = (Workers(f"kafka://{cluster}/replayed", spec).finish() for _ in range(2))
    assert first.numbers == second.numbers and len(first.numbers[0]) == 63


def test_bad_records_are_counted_and_named_and_block_nothing(cluster, spec, tmp_path):
    good = records(0, 100)
    values = [*good[:30], b"no record", *good[30:60], {"user": "u", "number": "many", "clicked": 1}, *good[60:]]
    brokers.produce(cluster, "bad", values, 1)
    url, config = f"kafka://{cluster}/bad", dataclasses.replace(LATEST, max_bad_rows=2)
    file = tmp_path / "letters" / "dead_letters.jsonl"
    first = Workers(url, spec, 2, config, batches=2, letters=DeadLetters(file)).finish()
    assert first.position.bad_rows == 1
    rest = Workers(url, spec, 1, config, position=first.position).finish()
    assert sorted(first.trained + rest.trained) == list(range(100)) and rest.position.bad_rows == 2
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(each["stream"], each["partition"], each["offset"]) for each in letters][0] == ("kafka topic bad", 0, "30")
    assert "'many' is not a finite number" in letters[1]["reason"]
    anew = Workers(url, spec, 1, dataclasses.replace(config, start="earliest"), position=rest.position).finish()
    assert not anew.errors and anew.position.bad_rows == 2  # Those before are not of this reading.


def test_bad_records_that_cannot_be_kept_end_the_training(cluster, spec):
    brokers.produce(cluster, "full", [*records(0, 9), b"?"], 1)
    config = dataclasses.replace(LATEST, max_bad_rows=2)
    workers = Workers(f"kafka://{cluster}/full", spec, 2, config, letters=DeadLetters("/dev/full")).finish()
    assert len(workers.errors) == 2
    assert all("/dev/full" in each and "No space left on device" in each for each in workers.errors)


def test_a_bad_record_follows_a_line_whose_write_was_interrupted(tmp_path):
    file = tmp_path / "dead_letters.jsonl"
    for text, kept in (("", ""), ('{"offset": 1}\n', '{"offset": 1}\n'), ('{"off', '{"off\n')):
        file.write_text(text)
        DeadLetters(file).write([{"offset": 2}])
        assert file.read_text() == kept + '{"offset": 2}\n'


def test_more_bad_records_than_allowed_end_every_worker_by_name(cluster, spec):
    brokers.produce(cluster, "worse", [*records(0, 9), b"?"], 1)
    workers = Workers(f"kafka://{cluster}/worse", spec, 2).finish()
    assert len(workers.errors) == 2
    for each in workers.errors:
        assert "kafka topic worse, partition 0, offset 9" in each and "max_bad_rows=0" in each


def test_a_quiet_stream_gives_padding_and_a_partial_batch_after_the_wait(cluster, spec):
    brokers.produce(cluster, "quiet", records(0, 3), 1)
    workers = Workers(f"kafka://{cluster}/quiet", spec, 2, StreamConfig(wait_secs=0.2))
    launch.wait_until(lambda: workers.trained == [0, 1, 2], "the records")
    last = workers.end_after(2)
    assert workers.finish().trained == [0, 1, 2]
    assert [len(of_rank) for of_rank in workers.numbers] == [last, last]


def test_where_to_begin_and_to_end(spec):
    with brokers.tansu() as broker:
        brokers.make_topic(broker.address, "clicks", 2)
        brokers.produce(broker.address, "clicks", records(0, 40), 2)
        time.sleep(1.1)
        middle = time.time()
        brokers.produce(broker.address, "clicks", records(40, 60), 2)
        url = f"kafka://{broker.address}/clicks"
        time_of = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(middle))
        before = Workers(url, spec, config=StreamConfig(until=time_of)).finish()
        after = Workers(url, spec, config=StreamConfig(start=time_of, until="latest")).finish()
        assert sorted(before.trained + after.trained) == list(range(60)) and len(after.trained) >= 20
        latest = Workers(url, spec, config=StreamConfig(start="latest", until="latest")).finish()
        assert latest.trained == [] and sum(latest.position.next.values()) == 60
        # The same value resumes; another one begins there.
        same = Workers(url, spec, config=LATEST, position=before.position).finish()
        assert sorted(same.trained) == sorted(after.trained)
        other = Workers(url, spec, config=StreamConfig(start="earliest", until="latest"), position=before.position)
        assert other.finish().trained == list(range(60))


@pytest.mark.parametrize("has_id", [True, False])
def test_a_stream_that_is_not_the_one_of_the_checkpoint_is_refused(spec, has_id, monkeypatch):
    if not has_id:
        monkeypatch.setattr("ctr_trainer.live.stream.kafka.KafkaSource.identity", lambda source: "")
    with brokers.tansu() as broker:
        url = f"kafka://{broker.address}/clicks"
        brokers.make_topic(broker.address, "clicks", 2)
        brokers.produce(broker.address, "clicks", records(0, 40), 2)
        for position, expected in (
            (StreamPosition("kafka topic clicks", "checkpoint", {0: 5000}), "offset 5000.*created again"),
            (StreamPosition("kafka topic views", "checkpoint", {0: 1}), "a position in kafka topic views"),
        ):
            (error,) = Workers(url, spec, position=position).finish().errors
            assert re.search(expected, error)
        first = Workers(url, spec, 2, batches=2).finish()
        again = Workers(url, spec, 2, batches=1, position=first.position).finish()
        assert not again.errors and again.position.identity == first.position.identity
        assert len(again.position.marks) == 2 and bool(again.position.identity) == has_id
        brokers.delete_topic(broker.address, "clicks")
        brokers.make_topic(broker.address, "clicks", 2)
        brokers.produce(broker.address, "clicks", records(100, 200), 2)
        (error,) = Workers(url, spec, position=again.position).finish().errors
        assert "kafka topic clicks" in error and "another stream of this name, which was created again" in error
        anew = Workers(url, spec, config=StreamConfig("1970-01-01", "latest"), position=again.position).finish()
        assert anew.trained == list(range(100, 200))
    with pytest.raises(UserError, match="expected kafka://"):
        StreamAddress.parse("kafka://host:9092")


def test_a_record_of_the_future_is_trained_and_does_not_move_event_time(cluster, spec, caplog):
    now = time.time()
    times = {3: now + 1e9, 4: now + 900, 9: now + 60}
    brokers.produce(cluster, "future", records(0, 10), 1, event_seconds=lambda n: times.get(n, now - 100 + n))
    workers = Workers(f"kafka://{cluster}/future", spec, batch_size=4).finish()
    assert workers.trained == list(range(10))
    assert abs(workers.figures.event_seconds - now - 60) < 1
    (named,) = [record.getMessage() for record in caplog.records if "ahead of the clock" in record.getMessage()]
    assert "kafka topic future, partition 0, offset 3" in named and "above 600 s" in named


def test_prometheus_reads_the_figures_of_a_stream():
    figures = Figures()
    window = Window([[Range(0, 0, 3)]], {0: 3}, 3, {0: Report(3, [(0, 0, 0, 0)], [], 1000.5, {})})
    figures.add(window)
    figures.begin(window)
    figures.lag_records, figures.new_keys = 7, NewKeys(["user"], samples=True)
    figures.new_keys.begin_lookup(create=True)
    figures.new_keys.add(["user"], np.array([[30, 60]]))
    figures.new_keys.begin_lookup(create=True)
    server = serve(figures, 0)
    text = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30).read().decode()
    server.shutdown()
    server.server_close()
    assert "ctr_stream_lag_records 7.0" in text and "ctr_stream_examples_total 3.0" in text
    assert "ctr_stream_event_seconds 1000.5" in text
    assert 'ctr_stream_new_key_share{feature="user"} 0.5' in text
    assert "lag: 7 records" in figures.status_line() and "event time: 1970-01-01T00:16:40Z" in figures.status_line()
