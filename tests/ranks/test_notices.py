"""Notices on horovodrun's server."""

import socket
import threading
import time

from ctr_trainer.ranks import notices
from ctr_trainer.ranks.notices import Notices


def test_ranks_find_each_others_texts_and_no_text_that_is_too_long(address, monkeypatch):
    one, other = Notices(address), Notices(address)
    for key, text in (("end.1", "3"), ("process.0", "7 host"), ("said", "a b\nc é"), ("empty", "")):
        one.put(key, text)
        assert other.get(key) == text
    assert other.get("none") is None
    monkeypatch.setattr(notices, "_MOST_BYTES", 3)
    assert (other.get("end.1"), other.get("process.0")) == ("3", None)


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


def test_a_request_whose_connection_is_closed_is_repeated_once():
    found = Notices(_raw_server([b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7"]))
    assert found.get("ends.1") == "7"
    assert Notices(_raw_server(2 * [b""])).get("process.1") is None


def test_a_server_that_was_silent_is_asked_again_after_a_while(address, monkeypatch):
    monkeypatch.setattr(notices, "_SECONDS", 0.1)
    silent = socket.create_server(("127.0.0.1", 0))  # Nobody accepts.
    found = Notices("{}:{}".format(*silent.getsockname()))
    assert found.get("ends.1") is None
    monkeypatch.undo()  # The address that answers may take its time.
    found.address = address
    found.put("ends.1", "7")
    assert Notices(address).get("ends.1") is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30)
    found.put("ends.1", "7")
    assert found.get("ends.1") == "7"
    silent.close()
