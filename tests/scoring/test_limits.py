"""What one client can do to a scoring server: large, endless, broken and silent requests."""

import concurrent.futures
import contextlib
import io
import json
import logging
import socket
import threading

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.live.publication.raw_inputs import NUMBER, TEXTS, RawFeature, RawInputs
from ctr_trainer.live.scoring import http_app, http_server
from ctr_trainer.live.scoring.batcher import Batcher
from ctr_trainer.live.scoring.examples import Examples
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.served_model import Freshness, Scored
from ctr_trainer.settings.command_flags import ScoreLimits
from tests.scoring import trained
from tests.scoring.conftest import Client, exchanged, probabilities, running, until

_SECONDS = 60
_HALF = b'"\\ud800"'
_PREDICT = f"POST /v1/models/{trained.NAME}:predict HTTP/1.1\r\nHost: localhost\r\n"
_NUMBER = RawInputs((RawFeature("price", NUMBER),), frozenset())


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


@pytest.mark.parametrize("name", ["user", "price", "tags", "topics"])
@pytest.mark.parametrize("form", ["value", "list", "base64", "column", "feature"])
def test_half_a_character_is_refused_wherever_it_stands(client, small_model, name, form):
    instance = dict(small_model.instances[0])
    values = {"value": "HALF", "list": ["HALF"], "base64": {"b64": "HALF"}, "column": "HALF", "feature": 1}
    instance["HALF" if form == "feature" else name] = values[form]
    columns = {key: [value] for key, value in instance.items()}
    body = {"inputs": columns} if form == "column" else {"instances": [instance]}
    status, answer, _ = client.ask(
        f"/v1/models/{trained.NAME}:predict", json.dumps(body).encode().replace(b'"HALF"', _HALF)
    )
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
    starts = ("", "GET /healthz HTTP/1.1\r\nA: ", _PREDICT + "Content-Length: 10\r\n\r\n{")
    with running(publication) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connected(server.port)) for _ in starts]
        for connection, start in zip(connections, starts, strict=True):
            connection.sendall(start.encode())
        answers = [_read_all(connection) for connection in connections]
    assert answers[:2] == [b"", b""] and answers[2].startswith(b"HTTP/1.1 408 ")


def _request(instance):
    body = json.dumps({"instances": [instance]}).encode()
    return _PREDICT.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


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
        answers.append((int(line.split()[1]), headers, file.read(int(headers.get("content-length", -1)))))
    return answers


def _are_right(answers, model):
    """Whether each answer is of status 200 and has the prediction of its own request."""
    found = np.concatenate([probabilities(json.loads(body)) for _, _, body in answers])
    expected = np.resize(model.expected[0], len(answers))
    return {status for status, _, _ in answers} == {200} and np.allclose(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (_PREDICT.encode() + b"A: " + b"a" * 40_000, 400),
        (_PREDICT.encode() + b"Content-Length: 10\r\n\r\n{", 408),
    ],
    ids=["garbage", "long head", "half a body"],
)
def test_a_refused_request_leaves_the_earlier_ones_their_answers(
    server, small_model, monkeypatch, caplog, sent, status
):
    monkeypatch.setattr(http_app, "_BODY_SECONDS", 0.5)
    *answered, last = _answers(server.port, b"".join(map(_request, small_model.instances[:5])) + sent)
    assert len(answered) == 5 and _are_right(answered, small_model)
    assert last[0] == status and last[1]["connection"] == "close"
    assert not any(record.exc_info for record in caplog.records)


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


def test_flight_refuses_what_decodes_to_too_much_and_shows_no_traceback(server, small_model):
    batch = pa.RecordBatch.from_pylist(small_model.instances[:2])
    place = batch.schema.names.index("user")
    zstd = pa.ipc.IpcWriteOptions(compression="zstd")
    assert exchanged(server, batch, options=zstd).num_rows == 2
    long = pa.array(["u" * (8 << 20), "u"])
    with pytest.raises(pa.ArrowInvalid, match="bytes, over 4194304, a limit that grows with max_examples") as refused:
        exchanged(server, batch.set_column(place, "user", long), options=zstd)
    assert "Traceback" not in str(refused.value)
    rows = pa.Table.from_batches([batch]).take([0] * 1000).combine_chunks().to_batches()[0]
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["u" * 100_000]))
    with pytest.raises(pa.ArrowInvalid, match="100000000 bytes without its dictionary"):
        exchanged(server, rows.set_column(place, "user", words))
    tags = pa.array([[None] * 1000] * 1000)
    with pytest.raises(pa.ArrowInvalid, match="a limit that grows with max_examples"):
        exchanged(server, rows.set_column(batch.schema.names.index("tags"), "tags", tags))
    assert exchanged(server, batch).num_rows == 2


def _examples(count):
    return Examples(_NUMBER, count, {"price": np.zeros(count, np.float32)})


def _scored(examples):
    return Scored({"p": np.zeros(examples.count)}, Freshness(1, 0, 0, 0.0), {})


def test_an_exception_beside_the_model_does_not_end_the_scoring_thread():
    failures = iter([RuntimeError("in on_batch"), None])

    def on_batch(scored, examples, waited):
        if (failure := next(failures)) is not None:
            raise failure

    batcher = Batcher(_scored, ScoreLimits(timeout_secs=_SECONDS), on_batch)
    with pytest.raises(RequestRefused, match="the model failed: RuntimeError; the server's log says more"):
        batcher.submit(_examples(1)).result(_SECONDS)
    assert batcher.submit(_examples(2)).result(_SECONDS).outputs["p"].shape == (2,)
    batcher.close()


def test_what_is_cancelled_makes_room_in_the_queue_and_is_not_scored():
    goes_on, began, counts = threading.Event(), threading.Event(), []

    def score(examples):
        counts.append(examples.count)
        began.set()
        assert goes_on.wait(_SECONDS)
        return _scored(examples)

    batcher = Batcher(score, ScoreLimits(max_queue=10, timeout_secs=_SECONDS))
    first = batcher.submit(_examples(1))
    assert began.wait(_SECONDS)
    late = [batcher.submit(_examples(5)), batcher.submit(_examples(4))]
    with pytest.raises(RequestRefused, match="9 examples wait; the limit is 10 examples"):
        batcher.submit(_examples(7))
    assert late[0].cancel() and late[1].cancel()
    last = batcher.submit(_examples(7))
    goes_on.set()
    assert [each.result(_SECONDS).outputs["p"].shape for each in (first, last)] == [(1,), (7,)]
    batcher.close()
    assert counts == [1, 7]


def test_a_batch_has_no_more_values_than_one_request_may_have():
    inputs = RawInputs((RawFeature("tags", TEXTS),), frozenset())
    short, long = (Examples(inputs, 1, {"tags": [[b"t"] * count]}) for count in (1, 50))
    sizes, goes_on, began = [], threading.Event(), threading.Event()

    def score(examples):
        sizes.append(examples.count * sum(examples.widths))
        began.set()
        assert goes_on.wait(_SECONDS)
        return _scored(examples)

    batcher = Batcher(score, ScoreLimits(max_values=100, timeout_secs=60.0))
    first = batcher.submit(short)
    assert began.wait(_SECONDS)
    futures = [batcher.submit(each) for each in (short, long, short, short)]
    goes_on.set()
    concurrent.futures.wait([first, *futures], _SECONDS)
    batcher.close()
    assert sizes == [1, 100, 2]
