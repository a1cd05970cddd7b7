"""How the other workers wait for rank 0, which plans the reading of a stream, and what they raise when it fails."""

import contextlib
import multiprocessing.connection
import socket
import threading
import types

import pytest

from ctr_trainer.live.stream import network
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.figures import Figures
from ctr_trainer.live.stream.network import CoordinatorServer, RemoteCoordinator
from ctr_trainer.live.stream.source import DeadLetters, Range
from ctr_trainer.ranks.endings.records import RecordKind
from ctr_trainer.ranks.endings.report import EndReport
from ctr_trainer.settings.training_configs import StreamConfig
from ctr_trainer.system.messages.errors import LOST, Lost, UserError, status_of
from tests.stream.test_any_source import MemorySource


@pytest.mark.parametrize("kind", [Lost, UserError, ConnectionRefusedError, ZeroDivisionError])
def test_an_error_of_rank_0_has_the_same_status_on_every_rank(kind):
    def share(window, rank, seconds):
        raise kind("the broker has gone")

    server = CoordinatorServer(types.SimpleNamespace(share=share, closing=[]), "127.0.0.1", b"key")
    remote = RemoteCoordinator(("127.0.0.1", server.port), b"key", 1, 60)
    with pytest.raises(Exception, match="the broker has gone") as found:
        remote.share(0)
    assert status_of(found.value) == status_of(kind())


@pytest.mark.parametrize("reads", [True, False], ids=["after it reads the request", "at once"])
def test_a_rank_0_that_has_ended_is_the_cause_and_not_the_rank_that_asks(reads, monkeypatch):
    def answer():
        for connection in (listener.accept(), listener.accept()):
            if reads:
                connection.poll(0.2)
            connection.close()

    with multiprocessing.connection.Listener(("127.0.0.1", 0), authkey=b"key") as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        remote = RemoteCoordinator(listener.address, b"key", 1, 60)
        with pytest.raises(ConnectionError) as found:
            remote.share(0)
        thread.join(60)
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    record = EndReport()._record_of(found.value)
    assert (record.kind, record.status) == (RecordKind.OTHER_RANK, LOST)


def test_a_stream_may_be_quiet_for_longer_than_rank_0_may_be_silent():
    source = MemorySource(0)
    coordinator = Coordinator(lambda: source, StreamConfig(wait_secs=0.05), None, 2, 4, DeadLetters(), Figures())
    server = CoordinatorServer(coordinator, "127.0.0.1", b"key")
    remote = RemoteCoordinator(("127.0.0.1", server.port), b"key", 1, timeout=2)
    threading.Timer(4, source.records[0].extend, [[b"{}"] * 8]).start()
    assert remote.share(0) == [Range(0, 4, 8)]
    coordinator.close()


def test_a_rank_0_that_is_silent_is_lost():
    is_over = threading.Event()
    coordinator = types.SimpleNamespace(share=lambda *asked: is_over.wait(60), closing=[])
    server = CoordinatorServer(coordinator, "127.0.0.1", b"key")
    with pytest.raises(Lost, match="rank 0, .*, has not answered for 2 s"):
        RemoteCoordinator(("127.0.0.1", server.port), b"key", 1, timeout=1).share(0)
    is_over.set()


def test_a_wait_for_a_quiet_stream_ends_with_the_reader():
    coordinator = Coordinator(lambda: MemorySource(0), StreamConfig(), None, 2, 4, DeadLetters(), Figures())
    server = CoordinatorServer(coordinator, "127.0.0.1", b"key")
    remote = RemoteCoordinator(("127.0.0.1", server.port), b"key", 1, timeout=1)
    threading.Timer(1, remote.close).start()
    assert remote.share(0) is None
    coordinator.close()


def test_a_connection_that_says_nothing_blocks_neither_workers_nor_the_end():
    coordinator = types.SimpleNamespace(share=lambda *asked: [Range(0, 4, 8)], closing=[])
    server = CoordinatorServer(coordinator, "127.0.0.1", b"key")
    remotes, (close,) = [], coordinator.closing
    with socket.create_connection(("127.0.0.1", server.port)):
        connecting = threading.Thread(
            target=lambda: remotes.append(RemoteCoordinator(("127.0.0.1", server.port), b"key", 1, 60)), daemon=True
        )
        connecting.start()
        connecting.join(20)
        assert remotes and remotes[0].share(0) == [Range(0, 4, 8)]
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    assert remotes[0].share(1) == [Range(0, 4, 8)]  # The open connections are answered until the process ends.


def test_a_worker_of_another_job_is_refused():
    server = CoordinatorServer(types.SimpleNamespace(closing=[]), "127.0.0.1", b"key")
    with pytest.raises(UserError, match="digest sent was rejected"):
        RemoteCoordinator(("127.0.0.1", server.port), b"other", 1, 60)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]"], ids=["nothing", "HTTP", "JSON"])
def test_a_connection_without_the_key_is_closed_unanswered(said, monkeypatch):
    monkeypatch.setattr(network, "_CONNECT_SECONDS", 1, raising=False)
    server = CoordinatorServer(types.SimpleNamespace(closing=[]), "127.0.0.1", b"key")
    with socket.create_connection(("127.0.0.1", server.port), 20) as peer:
        peer.sendall(said)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # The server has not read all that was said.
            while part := peer.recv(1000):
                received += part
    assert b"#CHALLENGE#" in received and b"#WELCOME#" not in received


def test_a_rank_0_that_does_not_accept_is_named(monkeypatch):
    monkeypatch.setattr(network, "_CONNECT_SECONDS", 0.5, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(UserError, match="rank 1 cannot reach rank 0 at .* no answer within 0.5 s"):
            RemoteCoordinator(silent.getsockname(), b"key", 1, 60)
