"""How the other workers wait for rank 0, which plans the reading of a stream, and what they raise when it fails."""

import multiprocessing.connection
import threading
import types

import pytest

from ctr_trainer.live.stream.coordinator import Coordinator
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
    coordinator = Coordinator(lambda: source, StreamConfig(wait_secs=0.05), None, 2, 4, DeadLetters())
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
    coordinator = Coordinator(lambda: MemorySource(0), StreamConfig(), None, 2, 4, DeadLetters())
    server = CoordinatorServer(coordinator, "127.0.0.1", b"key")
    remote = RemoteCoordinator(("127.0.0.1", server.port), b"key", 1, timeout=1)
    threading.Timer(1, remote.close).start()
    assert remote.share(0) is None
    coordinator.close()
