"""What one client can do to a scoring server: large, endless, broken and silent requests."""

import concurrent.futures
import contextlib
import http.client
import io
import json
import logging
import socket
import threading

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.scoring import http_app, http_server
from ctr_trainer.settings.command_flags import ScoreLimits
from tests.scoring import trained
from tests.scoring.conftest import Client, exchanged, probabilities, running, until, waiting_reader

_SECONDS = 60
_PREDICT = f"POST /v1/models/{trained.NAME}:predict HTTP/1.1\r\nHost: localhost\r\n"


def _connected(port):
    return contextlib.closing(socket.create_connection(("127.0.0.1", port), _SECONDS))


def _read_all(connection):
    """Returns what the server sends until it closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _send_until_closed(connection, part, most):
    """Sends the same bytes until the server closes the connection. Returns (bytes sent, what it answered)."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            connection.sendall(part)
            sent += len(part)
    return sent, _read_all(connection)


@pytest.mark.parametrize("value", ["HALF", ["HALF"], {"b64": "HALF"}], ids=["text", "list", "base64"])
def test_half_a_character_is_refused_wherever_it_stands(client, small_model, value):
    whole = small_model.instances[0]
    instances = [{**whole, name: value} for name in ("user", "price", "tags", "topics")] + [{**whole, "HALF": value}]
    columns = [{"inputs": {name: [value] for name, value in each.items()}} for each in instances]
    for body in (*columns, *({"instances": [each]} for each in instances)):
        text = json.dumps(body).encode().replace(b'"HALF"', b'"\\ud800"')
        status, answer, _ = client.ask(f"/v1/models/{trained.NAME}:predict", text)
        assert status == 400 and "Traceback" not in str(answer), answer
        answer["error"].encode()


@pytest.mark.parametrize(
    ("start", "part", "status"),
    [
        ("GET /", b"a" * 1000, 400),
        (_PREDICT + "A: ", b"a" * 1000, 400),
        (_PREDICT, b"A: b\r\n", 400),
        (_PREDICT + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: ", b"a" * 1000, None),
        ("", b"\r\n" * 500, 400),
    ],
    ids=["url", "header", "headers", "trailer", "nothing"],
)
def test_an_endless_head_ends_the_connection(server, start, part, status):
    with _connected(server.port) as connection:
        connection.sendall(start.encode())
        sent, answer = _send_until_closed(connection, part, 64 << 20)
    assert sent < 16 << 20  # What the buffers of the kernel hold is sent in any case.
    assert status is None or not answer or answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_a_request_that_never_ends_ends_the_connection(publication, monkeypatch):
    monkeypatch.setattr(http_server, "_SILENT_SECONDS", 2)
    monkeypatch.setattr(http_app, "_BODY_SECONDS", 0.2)
    heads = "", "GET /healthz HTTP/1.1\r\nA: "
    starts = (*heads, *(_PREDICT + "Content-Length: 10\r\n\r\n" + body for body in ("{", "")))
    with running(publication) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connected(server.port)) for _ in starts]
        for connection, start in zip(connections, starts, strict=True):
            connection.sendall(start.encode())
        answers = [_read_all(connection) for connection in connections]
    assert answers[:2] == [b"", b""] and all(each.startswith(b"HTTP/1.1 408 ") for each in answers[2:])


def _request(instance):
    body = json.dumps({"instances": [instance]}).encode()
    return _PREDICT.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _answers(port, sent):
    """Sends bytes on one connection until the server closes it; returns (status, headers, body) of each answer."""
    with _connected(port) as connection, concurrent.futures.ThreadPoolExecutor(1) as threads:
        threads.submit(connection.sendall, sent)
        file, answers = io.BytesIO(_read_all(connection)), []
    while line := file.readline():
        headers = {}
        while header := file.readline().strip():
            name, _, value = header.decode().partition(": ")
            headers[name] = value
        answers.append((int(line.split()[1]), headers, file.read(int(headers.get("content-length", -1)))))
    return answers


def _are_right(answers, model):
    """Whether each answer is of status 200 and has the prediction of its own request."""
    found = np.concatenate([probabilities(json.loads(body)) for _, _, body in answers])
    expected = np.resize(model.expected[0], len(answers))
    return {status for status, _, _ in answers} == {200} and np.allclose(found, expected, atol=1e-6, rtol=0)


def test_a_request_to_upgrade_is_answered_by_http_1(server, small_model):
    """As Java's client sends it."""
    first, last = (_request(each) for each in small_model.instances[:2])
    upgrade, close = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", b"Connection: close\r\n"
    sent = first.replace(b"Host", upgrade + b"Host", 1) + last.replace(b"Host", close + b"Host", 1)
    answered = _answers(server.port, sent)
    assert len(answered) == 2 and _are_right(answered, small_model)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", 200),
        (_PREDICT.encode() + b"A: " + b"a" * 300_000, 200),
        (_PREDICT.encode() + b"Content-Length: 10\r\n\r\n{", 408),
    ],
    ids=["garbage", "long head", "half a body"],
)
def test_a_refused_request_leaves_the_earlier_ones_their_answers(
    server, small_model, monkeypatch, caplog, sent, status
):
    monkeypatch.setattr(http_app, "_BODY_SECONDS", 0.5)
    answered = _answers(server.port, b"".join(map(_request, small_model.instances[:5])) + sent)
    assert len(answered) == 5 + (status == 408) and _are_right(answered[:5], small_model)
    assert answered[-1][0] == status and answered[-1][1]["connection"] == "close"
    assert not any(record.exc_info for record in caplog.records)


def test_a_client_that_does_not_wait_for_answers_is_closed_after_some(server):
    sent = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100_000
    answered = _answers(server.port, sent)  # The last ones may be lost, because most of what was sent is never read.
    assert 0 < len(answered) < 100_000 and {status for status, _, _ in answered} == {200}


@pytest.mark.parametrize("expects", [False, True], ids=["sent at once", "awaits 100"])
def test_a_body_that_is_too_large_is_refused_and_the_client_reads_why(server, expects):
    most = server._http.config.app._limits.max_body_bytes
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=_SECONDS)) as connection:
        connection.putrequest("POST", f"/v1/models/{trained.NAME}:predict")
        connection.putheader("Content-Length" if expects else "Transfer-Encoding", most + 1 if expects else "chunked")
        if expects:
            connection.putheader("Expect", "100-continue")
        connection.endheaders()
        if not expects:
            connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (most + 1, b" " * (most + 1)))
        response = connection.getresponse()
        assert response.status == 413 and b"send fewer examples" in response.read()
        assert (response.headers.get("connection") == "close") == expects


def test_silent_connections_do_not_keep_others_out(publication, monkeypatch):
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 8)
    with running(publication) as server, contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(_connected(server.port))
            with contextlib.closing(Client(server.port)) as client:
                assert client.ask("/healthz")[0] == 200
        assert len(server._http.server_state.connections) <= 8


def test_a_client_that_hangs_up_is_one_line_of_the_log(publication, caplog):
    with running(publication) as server, caplog.at_level(logging.INFO):
        for _ in range(5):
            with _connected(server.port) as connection:
                connection.sendall(f"{_PREDICT}Content-Length: 100\r\n\r\n{{".encode())
        text = 'ctr_score_requests_total{status="499",transport="http"} 5.0'
        with contextlib.closing(Client(server.port)) as client:
            until(lambda: text in client.ask("/metrics")[1], "five that hung up")
    said = [record for record in caplog.records if "hung up" in record.getMessage()]
    assert len(said) == 1 and not any(record.exc_info for record in caplog.records)


def test_a_request_to_another_host_is_refused_on_loopback_without_a_token(server):
    own = (f"localhost:{server.port}", "127.0.0.1", "[::1]", f"[::1]:{server.port}")
    for host, status in (("evil.example:80", 421), *((name, 200) for name in own)):
        with contextlib.closing(Client(server.port, {"Host": host})) as client:
            assert client.ask("/healthz")[0] == status


def test_long_lists_and_many_empty_values_are_refused(client, small_model):
    short, long = ({**small_model.instances[0], "tags": ["t"] * count} for count in (1, 1000))
    status, answer, _ = client.predict(instances=[long, *[short] * 900])
    assert status == 413 and "901 examples have" in answer["error"] and "grows with max_examples" in answer["error"]
    status, answer, _ = client.ask(f"/v1/models/{trained.NAME}:predict", b"[" + b"{}," * 200_000 + b"{}]")
    assert status == 413 and "commas and brackets" in answer["error"]


def test_arrow_that_decodes_to_too_much_is_refused(client, small_model):
    batch = pa.RecordBatch.from_pylist(small_model.instances[:2])
    zstd = pa.ipc.IpcWriteOptions(compression="zstd")
    rows = pa.Table.from_batches([batch]).take([0] * 1000)
    place, tags = batch.schema.names.index("user"), batch.schema.names.index("tags")
    long = pa.array(["u" * (8 << 20), "u"])
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["u" * 100_000]))
    assert exchanged(client, batch, options=zstd)[1].num_rows == 2
    for some, message in (
        (batch.set_column(place, "user", long), "bytes, over 4194304, a limit that grows with max_examples"),
        (rows.set_column(place, "user", words), "100000000 bytes without its dictionary"),
        (rows.set_column(tags, "tags", pa.array([[None] * 1000] * 1000)), "a limit that grows with max_examples"),
    ):
        status, answer, _ = exchanged(client, some, options=zstd)
        assert status == 413 and message in answer["error"], answer
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), pa.array(["u" * 100_000]))
    views = pa.ListViewArray.from_arrays([0] * 1000, [1000] * 1000, pa.array(["u"] * 1000))
    for name, column in (("user", runs), ("tags", views)):
        status, answer, _ = exchanged(client, rows.set_column(batch.schema.names.index(name), name, column))
        assert status == 400 and f"column '{name}': has the type {column.type}; expected single" in answer["error"]
    assert exchanged(client, batch)[1].num_rows == 2


def test_what_would_be_answered_too_late_gets_429(publication, small_model):
    goes_on, began = threading.Event(), threading.Event()
    slow = dict(
        reader=lambda url: waiting_reader(open_reader(url), goes_on, began), limits=ScoreLimits(timeout_secs=_SECONDS)
    )
    with (
        running(publication, **slow) as server,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
        contextlib.closing(Client(server.port)) as client,
        contextlib.closing(Client(server.port)) as other,
    ):
        server._batcher._seconds, server._batcher._answered = 100.0 * _SECONDS, 17.0
        first = threads.submit(client.predict, instances=small_model.instances[:1])
        try:
            assert began.wait(_SECONDS)
            status, answer, headers = other.predict(instances=small_model.instances[:1])
            assert status == 429 and headers["Retry-After"] == "1" and "the answer would take" in answer["error"]
            assert other.ask("/healthz")[0] == 200
        finally:
            goes_on.set()
        assert first.result(_SECONDS)[0] == 200
        assert other.predict(instances=small_model.instances[:1])[0] == 200
        assert other.figures()['ctr_score_requests_total{status="429",transport="http"}'] == 1
