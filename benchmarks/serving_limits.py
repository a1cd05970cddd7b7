"""Requests lost at the end of a scoring server, and memory that one hostile request takes; for `serving_faults.py`."""

import contextlib
import dataclasses
import http.client
import json
import pathlib
import random
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable

import pyarrow as pa
from pyarrow import flight
from serving_load import Server, serving

from tests.scoring import trained

_SECONDS = 120
# A loaded machine must not turn an answer into a timeout, which would count as lost.
_PATIENT = "--timeout_secs=60"
_PREDICT = f"/v1/models/{trained.NAME}:predict"


@dataclasses.dataclass
class _Counts:
    sent: int = 0
    lost: int = 0


def measure_sigterm(
    url: str | pathlib.Path, instances: list[dict], rounds: int = 5, clients: int = 8, seed: int = 0
) -> tuple[int, int]:
    """Ends servers under load by SIGTERM at random moments, and counts the requests that are lost.

    Each client sends one request after another on one connection, and connects again when an answer says
    `Connection: close`. A request is lost if the connection ends without an answer although the previous answer did not
    say so, or if its status is not 200.

    Returns:
      (requests lost, requests sent).
    """
    counts, moments = _Counts(), random.Random(seed)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place, serving(url, pathlib.Path(place, "score.log"), _PATIENT) as server:
            lock = threading.Lock()
            body = json.dumps({"instances": instances}).encode()
            threads = [
                threading.Thread(target=_send_until_refused, args=(server.port, body, counts, lock, moments.random()))
                for _ in range(clients)
            ]
            for thread in threads:
                thread.start()
            time.sleep(1 + moments.random())
            server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(_SECONDS)
            if status := server.process.wait(_SECONDS):
                raise SystemExit(
                    f"the server ended with status {status}:\n{pathlib.Path(place, 'score.log').read_text()[-3000:]}"
                )
    return counts.lost, counts.sent


def _send_until_refused(port: int, body: bytes, counts: _Counts, lock: threading.Lock, pause: float) -> None:
    """Sends requests until the server accepts no connection, one per tenth of `pause` seconds on average."""
    own = random.Random(pause)
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
        try:
            connection.connect()
        except OSError:
            return
        connection.auto_open = 0
        try:
            while True:
                time.sleep(own.random() * 0.2 * pause)
                try:
                    with lock:
                        counts.sent += 1
                    connection.request("POST", _PREDICT, body)
                    response = connection.getresponse()
                    response.read()
                except (OSError, http.client.HTTPException):
                    with lock:
                        counts.lost += 1
                    break
                if response.status != 200:
                    with lock:
                        counts.lost += 1
                if response.headers.get("connection") == "close":
                    break
        finally:
            connection.close()


def measure_memory(url: str | pathlib.Path, instances: list[dict]) -> dict[str, float]:
    """Returns, by attack, the MB by which it raises the server's peak of resident memory."""
    found = {}
    with tempfile.TemporaryDirectory() as place, serving(url, pathlib.Path(place, "score.log")) as server:
        for _ in range(3):
            _post(server, json.dumps({"instances": instances}).encode())
        for name, attack in _attacks(instances).items():
            server.forget_peak()
            before = server.resident_mb()
            attack(server)
            found[name] = round(max(server.peak_mb() - before, 0.0), 1)
            if server.process.poll() is not None:
                raise SystemExit(f"the server ended by the attack {name}")
    return found


def _attacks(instances: list[dict]) -> dict[str, Callable[[Server], None]]:
    rows = pa.RecordBatch.from_pylist([instances[0]] * 1000)
    user, tags = rows.schema.names.index("user"), rows.schema.names.index("tags")
    long = rows.slice(0, 2).set_column(user, "user", pa.array(["u" * (1 << 29), "u"]))
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["u" * 500_000]))
    lists = {**instances[0], **dict.fromkeys(("tags", "topics", "words", "history"), ["t"] * 1000)}
    padded = [lists, *[instances[0]] * 1000]
    at_most = [lists] * 32
    nulls = pa.FixedSizeListArray.from_arrays(pa.nulls(1000 << 14), 1 << 14)
    return {
        "flight_zstd": lambda server: _exchange(server, long, "zstd"),
        "flight_dictionary": lambda server: _exchange(server, rows.set_column(user, "user", words)),
        "flight_nulls": lambda server: _exchange(server, rows.set_column(tags, "tags", nulls)),
        "json_lists": lambda server: _post(server, json.dumps({"instances": padded}).encode()),
        "json_most": lambda server: _post(server, json.dumps({"instances": at_most}).encode()),
        "json_empty": lambda server: _post(server, b"[" + b"{}," * (4 << 18) + b"{}]"),
        "json_large": lambda server: _post(server, b'{"instances": "' + b"a" * (64 << 20) + b'"}'),
        "url": lambda server: _endless(server, b"GET /", 64 << 20),
        "header": lambda server: _endless(server, f"POST {_PREDICT} HTTP/1.1\r\nA: ".encode(), 64 << 20),
        "trailer": lambda server: _endless(
            server, f"POST {_PREDICT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ".encode(), 64 << 20
        ),
        "headers_of_300": _many_heads,
    }


def _post(server: Server, body: bytes) -> int:
    """Returns the status of a request; 0 if the connection broke."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_SECONDS)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", _PREDICT, body)
        return connection.getresponse().status
    return 0


def _exchange(server: Server, batch: pa.RecordBatch, compression: str | None = None) -> None:
    with flight.connect(f"grpc://127.0.0.1:{server.flight_port}") as client, contextlib.suppress(pa.ArrowException):
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(trained.NAME))
        writer.begin(batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression))
        writer.write_batch(batch)
        writer.done_writing()
        reader.read_chunk()


def _endless(server: Server, start: bytes, size: int) -> None:
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), _SECONDS)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(start)
            for _ in range(size >> 16):
                connection.sendall(b"a" * (1 << 16))


def _many_heads(server: Server) -> None:
    """Leaves 300 connections open, each with as many bytes of headers as the server takes, up to 2 MB."""
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", server.port))))
            connection.settimeout(0.1)
            with contextlib.suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * (2 << 20))
