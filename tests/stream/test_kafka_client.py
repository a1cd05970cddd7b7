"""What librdkafka reports reaches the user: refused certificates and users, and bad records that no topic takes."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import logging
import ssl
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from ctr_trainer.live.stream.opening import dead_letters, opener
from ctr_trainer.live.stream.source import Range, StreamAddress, Unavailable
from ctr_trainer.settings.training_configs import RedisFiles, StreamConfig
from ctr_trainer.system.messages.errors import UserError
from tests import certificates, ports
from tests.stream import brokers
from tests.stream.test_reader import Workers, records, spec  # noqa: F401, a fixture

BAD = [{"user": "u"}, {"clicked": "many"}]


@contextlib.contextmanager
def _tls_broker(path):
    """Gives host:port of a broker behind TLS, with the certificate in a directory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path / "server.pem", path / "server.key")

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader, writer):
        inner, outer = await asyncio.open_connection(*broker.address.split(":"))
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    port, loop = ports.free_port(), asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # Handshakes that fail are what is tested.
    with brokers.tansu(advertised=f"127.0.0.1:{port}") as broker:
        loop.run_until_complete(asyncio.start_server(take, "127.0.0.1", port, ssl=context))
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)


def _config(tmp_path, settings):
    file = tmp_path / "kafka.conf"
    file.write_text("# of a test\n\n" + "".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


def _open(address, config):
    return contextlib.closing(opener(StreamAddress.parse(f"kafka://{address}/clicks"), config, RedisFiles(), "group")())


def test_a_broker_behind_tls_is_read_with_the_settings_of_kafka_config(tmp_path, spec):  # noqa: F811
    security = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.make(tmp_path) / "ca.pem")}
    with _tls_broker(tmp_path) as address:
        brokers.make_topic(address, "clicks", 1, security)
        brokers.produce(address, "clicks", records(0, 40), settings=security)
        workers = Workers(f"kafka://{address}/clicks", spec, 2, kafka_config=_config(tmp_path, security)).finish()
        assert not workers.errors and workers.trained == list(range(40))


@pytest.mark.parametrize("settings", ["other-ca", "user"])
def test_a_refused_certificate_or_user_ends_the_start_and_names_the_setting(tmp_path, settings):
    if settings == "user":
        broker = brokers.tansu(more=["--authentication"])
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        security |= {"sasl.username": "ann", "sasl.password": "a password"}
    else:
        broker = _tls_broker(certificates.make(tmp_path))
        security = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "other-ca.pem")}
    with broker as started, _open(getattr(started, "address", started), _config(tmp_path, security)) as source:
        with pytest.raises(
            UserError, match="Correct the security settings in the file that kafka_config names"
        ) as error:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:  # As a reader does: the client may report the refusal after the request.
                with contextlib.suppress(Unavailable):
                    source.partitions()
    assert ("SASL" if settings == "user" else "certificate verify failed") in str(error.value)
    assert "a password" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"client.id=Z\xfcrich", "kafka.conf cannot be read.*utf-8"),
        (b"a=b\nbootstrap.servers=other:9092", "line 2: remove"),
    ],
)
def test_a_file_of_settings_that_cannot_be_used_is_named(tmp_path, text, expected):
    brokers.require_kafka()
    (tmp_path / "kafka.conf").write_bytes(text)
    with pytest.raises(UserError, match=expected), _open("127.0.0.1:1", str(tmp_path / "kafka.conf")):
        pass


def _letters(address, tmp_path, topic):
    url = StreamAddress.parse(f"kafka://{address}/clicks?dead_letters={topic}")
    return dead_letters(url, "", RedisFiles(), str(tmp_path))


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch):
    for name in ("kafka", "kafka_client"):
        monkeypatch.delitem(sys.modules, f"ctr_trainer.live.stream.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UserError, match=r"pip install 'ctr_trainer\[stream\]'"):
        opener(StreamAddress.parse("kafka://host:9092/clicks"), "", RedisFiles(), "group")


def test_a_broker_that_leaves_while_asked_for_its_ends_has_lost_no_records(monkeypatch):
    with brokers.tansu() as broker:
        brokers.make_topic(broker.address, "clicks", 1)
        brokers.produce(broker.address, "clicks", records(0, 3))
        with _open(broker.address, "") as source:
            assert source.lost({0: 3}) == {} and "offset 5" in source.lost({0: 5})[0]

            answers = iter([{0: 0}])  # Tansu reports such an end at times.

            def latest(partitions, exact=False):
                if (ends := next(answers, None)) is None:
                    raise Unavailable("gone")
                return ends

            monkeypatch.setattr(source, "latest", latest)
            monkeypatch.setattr(source, "_ends", lambda places: {})
            with pytest.raises(Unavailable, match="gone"):
                source.lost({0: 3})


def test_bad_records_reach_their_topic_before_a_position_is_saved(spec, tmp_path):  # noqa: F811
    from confluent_kafka import Consumer, TopicPartition

    with brokers.mock_cluster() as address:
        brokers.produce(address, "clicks", [*records(0, 20), *BAD, *records(20, 30)])
        letters = _letters(address, tmp_path, "bad")
        config = StreamConfig(until="latest", max_bad_rows=2)
        workers = Workers(f"kafka://{address}/clicks", spec, config=config, letters=letters).finish()
        assert workers.trained == list(range(30)) and workers.position.bad_rows == 2
        found = []
        with contextlib.closing(Consumer({"bootstrap.servers": address, "group.id": "reader"})) as consumer:
            consumer.assign([TopicPartition("bad", partition, 0) for partition in range(4)])
            while len(found) < 2:
                found += [json.loads(message.value()) for message in consumer.consume(2, 30)]
    assert sorted((each["partition"], each["offset"]) for each in found) == [(0, "20"), (0, "21")]
    assert not [*tmp_path.glob("dead_letters.jsonl")]


def test_a_bad_record_that_is_too_long_for_its_topic_is_kept_in_the_file(tmp_path):
    with brokers.mock_cluster() as address:
        _letters(address, tmp_path, "bad").write([{"offset": 1, "reason": "u" * 2_000_000}, {"offset": 2}])
    (kept,) = (tmp_path / "dead_letters.jsonl").read_text().splitlines()
    assert json.loads(kept)["offset"] == 1


def test_bad_records_that_no_topic_takes_are_kept_in_the_file(spec, tmp_path, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr("ctr_trainer.live.stream.kafka_client._LETTER_SECONDS", 1.0)
    letters = _letters(f"127.0.0.1:{ports.free_port()}", tmp_path, "bad")
    with caplog.at_level(logging.ERROR), brokers.mock_cluster() as address:
        brokers.produce(address, "clicks", [*BAD, *records(0, 10)])
        config = StreamConfig(until="latest", max_bad_rows=2)
        workers = Workers(f"kafka://{address}/clicks", spec, config=config, letters=letters).finish()
        assert workers.trained == list(range(10)) and workers.position.bad_rows == 2
    kept = [json.loads(line) for line in (tmp_path / "dead_letters.jsonl").read_text().splitlines()]
    assert [each["offset"] for each in kept] == ["0", "1"]
    assert "2 bad records did not reach bad and are kept in" in caplog.text
    assert "refused" in caplog.text  # Why.


class _Consumer:
    """Plays a consumer of 2,000 messages of 1,000 bytes in partition 0, and one in partition 1 after 20 calls."""

    def __init__(self):
        self._next, self._calls = {}, 0

    def incremental_assign(self, places):
        self._next |= {place.partition: place.offset for place in places}

    def incremental_unassign(self, places):
        for place in places:
            del self._next[place.partition]

    def consume(self, most, seconds):
        self._calls += 1
        first = self._next.get(0, 2000)
        found = [(0, offset) for offset in range(first, min(first + min(most, 100), 2000))]
        if not found and self._calls > 20 and self._next.get(1) == 0:
            found = [(1, 0)]
        self._next |= {partition: offset + 1 for partition, offset in found}
        return [self._message(*each) for each in found]

    def _message(self, partition, offset):
        return _answer(partition=partition, offset=offset, error=None, timestamp=(1, 0), value=b"x" * 1000)


def _answer(**fields):
    """Returns an object of the client, whose methods return these values."""
    return SimpleNamespace(**{name: lambda value=value: value for name, value in fields.items()})


def _error(name):
    """Returns an error of the client by the name of its code."""
    brokers.require_kafka()
    import confluent_kafka

    return confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name), "the reason")


def _read_by(consumer):
    """Returns a source without a broker that reads by an object in the place of its consumer."""
    brokers.require_kafka()
    source = opener(StreamAddress.parse("kafka://127.0.0.1:1/clicks"), "", RedisFiles(), "group")()
    vars(source)["_consumer"] = consumer
    return source


class _Refusing(_Consumer):
    """Plays a consumer that reports an error for partition 0."""

    def __init__(self, name):
        super().__init__()
        self._error = _error(name)

    def consume(self, most, seconds):
        return [_answer(partition=0, offset=7, error=self._error)] if most == 1 else []


class _Admin:
    """Plays brokers that give topics, and the error of `clicks` for its offsets."""

    def __init__(self, topics):
        self._topics = topics

    def list_topics(self, *asked, **named):
        return SimpleNamespace(topics=self._topics)

    def list_offsets(self, places, **named):
        import confluent_kafka

        answer = concurrent.futures.Future()
        answer.set_exception(confluent_kafka.KafkaException(self._topics["clicks"].error))
        return dict.fromkeys(places, answer)

    def poll(self, seconds):
        pass


_PERMANENT = ["TOPIC_AUTHORIZATION_FAILED", "_BAD_MSG", "_BAD_COMPRESSION", "_NOT_IMPLEMENTED", "MSG_SIZE_TOO_LARGE"]


@pytest.mark.parametrize("name", _PERMANENT)
def test_records_that_can_never_be_fetched_end_the_training(name):
    with pytest.raises(UserError, match="partition 0, offset 5.*the reason"):
        list(itertools.islice(_read_by(_Refusing(name)).read(Range(0, 5, 9)), 3))


def test_an_error_of_a_fetch_is_the_reason_why_no_record_arrives():
    source = _read_by(_Refusing("NOT_LEADER_FOR_PARTITION"))
    assert [len(messages) for messages in itertools.islice(source.read(Range(0, 5, 9)), 3)] == [0, 0, 0]
    assert source.trouble == "partition 0, offset 5: the reason"


@pytest.mark.parametrize(("first", "end", "expected"), [(9, 12, "so 4 records are lost"), (0, 3, "only up to 3:")])
def test_an_offset_that_is_not_there_is_described(first, end, expected, monkeypatch):
    source = _read_by(_Refusing("OFFSET_OUT_OF_RANGE"))
    monkeypatch.setattr(source, "earliest", lambda partitions: {0: first})
    monkeypatch.setattr(source, "latest", lambda partitions: {0: end})
    with pytest.raises(UserError, match=expected):
        list(source.read(Range(0, 5, 9)))


@pytest.mark.parametrize("is_away", [False, True])
def test_an_offset_that_only_a_replica_lacks_is_read_again(is_away, monkeypatch):
    source = _read_by(_Refusing("OFFSET_OUT_OF_RANGE"))

    def earliest(partitions):
        if is_away:
            raise Unavailable("gone")
        return {0: 5}

    monkeypatch.setattr(source, "earliest", earliest)
    monkeypatch.setattr(source, "latest", lambda partitions: {0: 5})
    assert [len(messages) for messages in itertools.islice(source.read(Range(0, 5, 9)), 3)] == [0, 0, 0]
    assert source.trouble == ("gone" if is_away else "partition 0, offset 5: the reason")


def test_a_topic_that_is_unknown_for_a_moment_does_not_end_the_training(monkeypatch):
    now, source = [0.0], _read_by(None)
    monkeypatch.setattr("ctr_trainer.live.stream.kafka.time.monotonic", lambda: now[0])
    unknown = _error("UNKNOWN_TOPIC_OR_PART")
    answers = {"clicks": SimpleNamespace(error=unknown, partitions={})}
    vars(source)["_admin"] = _Admin(answers)
    with pytest.raises(UserError, match="there is no topic"):
        source.partitions()
    for began in (100.0, 500.0):
        now[0], answers["clicks"] = began, SimpleNamespace(error=None, partitions={0: None})
        assert source.partitions() == [0]
        answers["clicks"] = SimpleNamespace(error=unknown, partitions={})
        for now[0] in (began + 90, began + 119):
            with pytest.raises(Unavailable, match="there is no topic"):
                source.partitions()
            with pytest.raises(Unavailable, match="there is no topic"):
                source.latest([0])
    now[0] += 2
    for ask in (source.partitions, lambda: source.latest([0])):
        with pytest.raises(UserError, match="there is no topic"):
            ask()


def test_a_topic_that_the_user_may_not_describe_ends_the_training():
    source = _read_by(None)
    answers = {"clicks": SimpleNamespace(error=_error("TOPIC_AUTHORIZATION_FAILED"), partitions={})}
    vars(source)["_admin"] = _Admin(answers)
    for ask in (source.partitions, lambda: source.latest([0])):
        with pytest.raises(UserError, match="kafka topic clicks.*the reason"):
            ask()


def test_records_kept_for_later_are_limited_in_bytes(monkeypatch):
    monkeypatch.setattr("ctr_trainer.live.stream.kafka._MOST_KEPT_BYTES", 200_000)
    source = _read_by(_Consumer())

    def offsets(*place):
        return [message.offset for messages in source.read(Range(*place)) for message in messages]

    assert offsets(0, 0, 1) == [0] and offsets(1, 0, 1) == [0]
    assert 100_000 < sum(len(message.value) for kept in source._kept.values() for message in kept) < 400_000
    assert [at for first in range(1, 1999, 222) for at in offsets(0, first, first + 222)] == list(range(1, 1999))
