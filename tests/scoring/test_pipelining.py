"""Several requests on one connection of a scoring server, sent without waiting for the answers."""

import concurrent.futures
import contextlib
import io
import json
import logging
import socket

import numpy as np
import pytest

from ctr_trainer.live.scoring import http_server
from tests.scoring import trained
from tests.scoring.conftest import Client, probabilities, running

_SECONDS = 60
_HEAD = f"POST /v1/models/{trained.NAME}:predict HTTP/1.1\r\nHost: localhost\r\n".encode()


def _request(instance):
    body = json.dumps({"instances": [instance]}).encode()
    return _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _answers(port, sent):
    """Sends bytes on one connection until the server closes it; returns (status, headers, body) of each answer."""
    with socket.create_connection(("127.0.0.1", port), _SECONDS) as connection:
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            sending = threads.submit(connection.sendall, sent)
            parts = []
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 16):
                    parts.append(part)
        with contextlib.suppress(OSError):
            sending.result()
    file, answers = io.BytesIO(b"".join(parts)), []
    while line := file.readline():
        headers = {}
        while header := file.readline().strip():
            name, _, value = header.decode().partition(": ")
            headers[name] = value
        answers.append((int(line.split()[1]), headers, file.read(int(headers["content-length"]))))
    return answers


def _assert_right(answers, model):
    """Each answer is of status 200 and has the prediction of its own request."""
    assert [status for status, _, _ in answers] == [200] * len(answers)
    found = np.concatenate([probabilities(json.loads(body)) for _, _, body in answers])
    expected = np.resize(model.expected[0], len(answers))
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


def test_pipelined_requests_beyond_the_limit_get_429_after_the_others(publication, small_model, caplog):
    sent = b"".join(map(_request, small_model.instances)) * 50
    with running(publication) as server, caplog.at_level(logging.INFO):
        for _ in range(3):
            *answered, (status, headers, body) = _answers(server.port, sent)
            assert len(answered) > http_server._MOST_PIPELINED
            _assert_right(answered, small_model)
            assert status == 429 and headers["connection"] == "close" and b"wait for their answers" in body
        with contextlib.closing(Client(server.port)) as client:
            assert client.predict(instances=small_model.instances[:1])[0] == 200
    assert len([record for record in caplog.records if "status 429" in record.getMessage()]) == 1
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("earlier", [1, 5])
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (_HEAD + b"A: b\r\n" * 200 + b"\r\n", 431),
        (_HEAD + b"A: " + b"a" * 40_000, 408),
        (_HEAD + b"Content-Length: 10\r\n\r\n{", 408),
    ],
    ids=["garbage", "broken body", "long URL", "many headers", "half a head", "half a body"],
)
def test_a_refused_request_leaves_the_earlier_ones_their_answers(
    server, small_model, monkeypatch, caplog, earlier, sent, status
):
    monkeypatch.setattr(http_server, "_HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http_server, "_BODY_SECONDS", 0.5)
    requests = b"".join(map(_request, small_model.instances[:earlier]))
    *answered, last = _answers(server.port, requests + sent)
    assert len(answered) == earlier and last[0] == status and last[1]["connection"] == "close"
    _assert_right(answered, small_model)
    assert not any(record.exc_info for record in caplog.records)
