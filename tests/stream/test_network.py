"""What the other workers raise when rank 0, which plans the reading of a stream, fails or has ended."""

import multiprocessing.connection
import threading
import types

import pytest

from ctr_trainer.live.stream.network import CoordinatorServer, RemoteCoordinator
from ctr_trainer.ranks.endings.records import RecordKind
from ctr_trainer.ranks.endings.report import EndReport
from ctr_trainer.system.messages.errors import LOST, Lost, UserError, status_of


@pytest.mark.parametrize("kind", [Lost, UserError, ConnectionRefusedError, ZeroDivisionError])
def test_an_error_of_rank_0_has_the_same_status_on_every_rank(kind):
    def share(window, rank):
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
