"""Notices on horovodrun's server, which takes what any program of the host sends, and the roll call by them."""

import http.client
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest
from horovod.runner.http.http_server import RendezvousServer

from ctr_trainer.ranks import notices
from ctr_trainer.ranks.notices import Notices, Placement, RollCall


@pytest.fixture
def address():
    """The address of a server as horovodrun runs it."""
    server = RendezvousServer()
    port = server.start()
    server.init([])
    yield f"127.0.0.1:{port}"
    server.stop()


def _of_ranks(address):
    found = [Notices(address) for _ in range(2)]
    for each in found:
        each.sign("secret of the job")
    return found


def _raw(address, key):
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", f"/ctr_trainer/{urllib.parse.quote(key, safe='')}")
    return connection.getresponse().read().decode()


def test_ranks_find_each_others_texts_with_and_without_the_secret(address):
    one, other = _of_ranks(address)
    for key, text in (("stopping/1", "3"), ("last_words", "rank 0: a b\nc é"), ("empty", "")):
        one.put(key, text)
        assert other.get(key) == text
    assert other.get("none") is None
    one.put("process.0", "7 host")
    assert Notices(address).get("process.0") == "7 host"


def test_texts_of_who_lacks_the_secret_count_as_none(address):
    one, other = _of_ranks(address)
    stranger, guesser = Notices(address), Notices(address)
    guesser.sign("another secret")
    for number, forger in enumerate((stranger, guesser)):
        forger.put(f"lost.{number}", "x")
        assert one.get(f"lost.{number}") is None
    one.put("ends.0", "x")
    stranger.put("ends.1", _raw(address, "ends.0"))  # A signature is of one key.
    assert other.get("ends.0") == "x" and other.get("ends.1") is None
    stranger.put("ends.2", _raw(address, "ends.0") + "x")
    assert other.get("ends.2") is None


def _raw_server(answers):
    """Returns the address of a server that answers each connection in turn: with these bytes, or by closing it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    if answer:
                        connection.recv(4096)
                        connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return "{}:{}".format(*server.getsockname())


def test_a_request_on_a_closed_connection_is_repeated():
    found = Notices(_raw_server([b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7"]))
    assert found.get("ends.1") == "7"
    found = Notices(_raw_server(4 * [b""]))
    assert found.get("process.1") is None
    assert not found.is_missing("process.1")


def test_a_server_that_was_silent_is_asked_again_after_a_while(address, monkeypatch):
    monkeypatch.setattr(notices, "_SECONDS", 0.1)
    silent = socket.create_server(("127.0.0.1", 0))  # Nobody accepts.
    found = Notices("{}:{}".format(*silent.getsockname()))
    assert found.get("ends.1") is None
    found.address = address
    found.put("ends.1", "7")
    assert Notices(address).is_missing("ends.1")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30)
    found.put("ends.1", "7")
    assert found.get("ends.1") == "7"
    silent.close()


def test_a_rank_is_unheard_if_the_server_has_nothing_of_it_from_anybody(address):
    one, other = (RollCall(each, Placement(rank, 3, range(3))) for rank, each in enumerate(_of_ranks(address)))
    assert "nothing was heard of rank 2," in one.unheard()
    Notices(address).put("process.2", "1 elsewhere")  # Not signed yet, or written over by another program.
    assert one.unheard() == other.unheard() == ""


class Board(dict):
    """`Notices` of one process."""

    put = dict.__setitem__


@pytest.fixture
def call(monkeypatch):
    """call(rank) -> its RollCall; of ranks 0 to 3, two on each of two hosts, only rank 3's process has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    board, found = Board(), {}
    monkeypatch.setattr(notices, "_ANSWER_SECONDS", 0.0)

    def call(rank):
        monkeypatch.setattr("socket.gethostname", lambda: f"host-{1 + rank // 2}")
        return found.setdefault(rank, RollCall(board, Placement(rank, 4, (range(0, 2), range(2, 4))[rank // 2])))

    for rank in range(4):
        call(rank)
    board.put("process.3", f"{ended.pid} host-2")
    return call


def test_a_killed_rank_is_known_on_another_host_once_one_beside_it_has_named_it(call):
    call(0).end()
    assert call(0).lost() == ""
    call(2).end()
    assert call(0).lost().startswith("rank 3 on host-2 has ended without an error message: it was killed")


def test_a_rank_that_has_told_its_end_is_not_lost(call):
    call(3).end()
    for rank in (0, 1, 2):
        call(rank).end()
    assert call(0).lost() == ""
