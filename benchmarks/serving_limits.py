"""What clients can do to a scoring server: requests lost at its end, and memory that one hostile request takes.

Each server is a process of its own, `python -m ctr_trainer score`, of a small model with every kind of feature. The
last line is JSON:

| key | |
|---|---|
| `requests_lost_at_sigterm` | requests that got no answer, or another one than 200, up to the server's end |
| `sigterm_rounds`, `sigterm_requests` | rounds of load with a SIGTERM at a random moment, and requests sent in all |
| `peak_mb_per_request` | the most MB that one attack added to the server's peak of resident memory |
| `mb_of_attack` | the same for each attack |

Example: python benchmarks/serving_limits.py --rounds=10
         python benchmarks/serving_limits.py --parts=memory
"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import flight

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.scoring import trained  # noqa: E402

PARTS = ("sigterm", "memory")
_SECONDS = 120
# A loaded machine must not turn an answer into a timeout, which would count as lost.
_PATIENT = "--timeout_secs=60"
_PREDICT = f"/v1/models/{trained.NAME}:predict"


@dataclasses.dataclass(frozen=True)
class Server:
    """A scoring server.

    Attributes:
      process: its process.
      port, flight_port: of HTTP and of Arrow Flight.
    """

    process: subprocess.Popen
    port: int
    flight_port: int

    def peak_mb(self) -> float:
        """Returns the most memory that the process has had resident since `forget_peak`."""
        return self._memory("VmHWM")

    def resident_mb(self) -> float:
        """Returns the memory that the process has resident."""
        return self._memory("VmRSS")

    def forget_peak(self) -> None:
        """Sets the peak to what is resident now."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _memory(self, name: str) -> float:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024


@contextlib.contextmanager
def serving(url: str | pathlib.Path, place: pathlib.Path, *flags: str) -> Iterator[Server]:
    """Yields a server of a publication that has loaded it; kills what is left of it."""
    log = place / "score.log"
    command = [sys.executable, "-m", "ctr_trainer", "score", f"--model={url}", "--port=0", "--flight_port=0", *flags]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stderr=out, cwd=ROOT)
    try:
        deadline = time.monotonic() + _SECONDS
        while "global step" not in (text := log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} does not serve:\n{text[-3000:]}")
            time.sleep(0.1)
        port, flight_port = re.search(r"://\S+:(\d+),", text)[1], re.search(r"Flight on \S+:(\d+)", text)[1]
        yield Server(process, int(port), int(flight_port))
    finally:
        process.kill()
        process.wait(_SECONDS)


@dataclasses.dataclass
class _Counts:
    sent: int = 0
    lost: int = 0


def measure_sigterm(
    url: str | pathlib.Path, instances: list[dict], rounds: int = 5, clients: int = 8, seed: int = 0
) -> tuple[int, int]:
    """Ends servers under load and counts the requests that are lost.

    Each client sends one request after another on one connection, and connects again when an answer says
    `Connection: close`. A request is lost if the connection ends without an answer, although the last answer on it did
    not say that it would be closed. A connection that is refused carries no request.

    Args:
      url: of the publication.
      instances: raw examples of its model.
      rounds: how many servers are ended.
      clients: how many clients send at a time.
      seed: of the moments.

    Returns:
      (requests lost, requests sent).
    """
    counts, moments = _Counts(), random.Random(seed)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place, serving(url, pathlib.Path(place), _PATIENT) as server:
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
    """Sends requests until the server lets nobody connect; the mean time between two is a tenth of `pause` seconds."""
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
    """Attacks a server, and measures by how much each attack raises the peak of its resident memory.

    Args:
      url: of the publication.
      instances: raw examples of its model.

    Returns:
      by attack MB per request; an attack of many connections counts as one request.
    """
    found = {}
    with tempfile.TemporaryDirectory() as place, serving(url, pathlib.Path(place)) as server:
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
    """Returns the attacks by name."""
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


def measure(args: argparse.Namespace) -> dict:
    """Returns the JSON of the last line."""
    found: dict = dict.fromkeys(("requests_lost_at_sigterm", "peak_mb_per_request"))
    with tempfile.TemporaryDirectory(prefix="ctr_trainer-") as place:
        from ctr_trainer.ranks import distributed

        distributed.init()
        model, url = trained.train(pathlib.Path(place, "model")), pathlib.Path(place, "publication")
        trained.publish(url, model.estimator, model.checkpoints[0])
        if "sigterm" in args.parts:
            lost, sent = measure_sigterm(url, model.instances[:10], args.rounds, seed=args.seed)
            found |= {"requests_lost_at_sigterm": lost, "sigterm_rounds": args.rounds, "sigterm_requests": sent}
        if "memory" in args.parts:
            attacks = measure_memory(url, model.instances)
            found |= {"peak_mb_per_request": max(attacks.values()), "mb_of_attack": attacks}
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="which to measure")
    parser.add_argument("--rounds", type=int, default=5, help="servers that are ended under load")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which servers are ended")
    print(json.dumps(measure(parser.parse_args(arguments))))


if __name__ == "__main__":
    main()
