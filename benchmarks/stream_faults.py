"""The part `faults` of `click_to_score.py`: damaged records, stopped processes and hostile clients at random moments.

A training of two workers reads a topic under `launch` and publishes for a score server. Meanwhile each fault of
`Faults` happens `times` times, in random order. At the end, `lost` counts the good records that were not trained and
the damaged records that are not among the dead letters; `wrong` counts the records that were trained more often than
they were appended, the damaged records that were trained, and the wrong answers. A topic of the same name that was
created again must be refused, and a server without one of the shards of its cluster must answer 503 or 504.
"""

import contextlib
import functools
import itertools
import json
import pathlib
import random
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import sides
import stream_kills as kills
from stream_loop import NAME, OWN, PARTITIONS, TOPIC, Appender, clicks, without_label

from tests import redis_cluster
from tests.scoring.conftest import Client
from tests.scoring.process import Server, serving
from tests.stream import brokers

PAUSE_SECONDS, RATE, WAIT_SECONDS = 2.0, 300.0, 600.0
BOMB_BYTES, PIPELINED, CONNECTIONS = 256 << 20, 40, 512
BIG = 2**53 + 1  # JSON numbers that a float64 cannot tell apart.
FAR_SECONDS = 50 * 365 * 86400


def arrow(columns: dict[str, Any], names: list[str] | None = None, compression: str | None = None) -> bytes:
    """Returns an Arrow stream of one row."""
    batch = pa.record_batch([pa.array([value]) for value in columns.values()], names or [*columns])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def with_a_wrong_offset(own: str) -> bytes:
    """Returns an Arrow stream with a text that ends far behind its buffer."""
    text = own.ljust(77)
    value = arrow({OWN: text, "label": 1})
    before, found, after = value.rpartition(struct.pack("<ii", 0, len(text)))  # The metadata has the length, too.
    if not found:
        raise SystemExit("the offsets of the Arrow message are not where this benchmark expects them")
    return before + struct.pack("<ii", 0, 1 << 30) + after


def _json(own: str, **more: Any) -> bytes:
    return json.dumps({OWN: own, "label": 1, "C1": "1", **more}).encode()


# f(value of OWN) -> a record that cannot be trained.
RECORDS: dict[str, Callable[[str], bytes]] = {
    "a wrong Arrow offset": with_a_wrong_offset,
    "a compressed Arrow bomb": lambda own: arrow({OWN: own, "label": 1, "C1": "0" * BOMB_BYTES}, compression="zstd"),
    "two Arrow columns of one name": lambda own: arrow(
        {OWN: own, "label": 1, "C1": "a", "C2": "b"}, [OWN, "label", "C1", "C1"]
    ),
    "a cut Arrow stream": lambda own: arrow({OWN: own, "label": 1})[:-100],
    "half of a surrogate pair": lambda own: _json(own, C1="X").replace(b"X", b"\\ud800"),
    "nested lists": lambda own: _json(own).replace(b'"1"', b"[" * 3000 + b"]" * 3000),
    "cut JSON": lambda own: _json(own)[:-5],
    "two JSON objects": lambda own: _json(own) + _json(own),
    "Latin-1": lambda own: _json(own, C1="X").replace(b"X", "Zürich".encode("latin-1")),
}


class Faults:
    """Makes the faults happen.

    Attributes:
      damaged: the values of OWN in the damaged records.
      good: those of further good records: large integers, and a record that is dated in 50 years.
      wrong: descriptions of wrong answers.
    """

    def __init__(self, broker: brokers.Broker, appender: Appender, server: Server, model_dir: pathlib.Path) -> None:
        self._broker, self._appender, self._server, self._model_dir = broker, appender, server, model_dir
        self._numbers, self._draw = itertools.count(), random.Random(0)
        self._asked = [without_label(next(clicks(3, kills.COLUMNS, 0, "asked")))]
        self.damaged: list[str] = []
        self.good: list[str] = []
        self.wrong: list[str] = []
        self.events: dict[str, Callable[[], None]] = {
            **{name: functools.partial(self._damage, make) for name, make in RECORDS.items()},
            "large integers": self._append_integers,
            "a date in 50 years": self._append_future,
            "a killed worker": functools.partial(self._kill, kills.training_workers),
            "a killed service": functools.partial(self._kill, kills.services),
            "a stopped broker": self._stop_broker,
            "pipelined requests": self._pipeline,
            "many connections": self._connect,
        }

    def happen(self, times: int, until: kills.Until) -> None:
        """Makes each fault happen `times` times, in random order, at random moments."""
        self._until = until
        order = self._draw.sample([*self.events] * times, len(self.events) * times)
        for number, name in enumerate(order, 1):
            time.sleep(self._draw.uniform(0.5, 1.5) * PAUSE_SECONDS)
            self.events[name]()
            print(f"fault {number} of {len(order)}: {name}", flush=True)

    def _damage(self, make: Callable[[str], bytes]) -> None:
        self.damaged.append(f"damaged {next(self._numbers)}")
        self._appender.append_bytes(make(self.damaged[-1]))

    def _append_integers(self) -> None:
        row = next(clicks(4, kills.COLUMNS, 0, "integer"))
        for own in (12.0, BIG + 2 * next(self._numbers), BIG + 2 * next(self._numbers)):
            self._appender.append_bytes(json.dumps({**row, OWN: own}).encode())
            self.good.append(str(int(own)))

    def _append_future(self) -> None:
        self.good.append(f"future {next(self._numbers)}")
        row = {**next(clicks(5, kills.COLUMNS, 0, "future")), OWN: self.good[-1]}
        self._appender.append_bytes(json.dumps(row).encode(), time.time() + FAR_SECONDS)

    def _kill(self, find: Callable[[pathlib.Path], list[Any]]) -> None:
        self._draw.choice(self._until(lambda: find(self._model_dir), "a process to kill")).kill()

    def _stop_broker(self) -> None:
        self._broker.stop()
        time.sleep(PAUSE_SECONDS)
        self._broker.resume()

    def _request(self) -> bytes:
        body = json.dumps({"instances": self._asked}).encode()
        head = f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _pipeline(self) -> None:
        with socket.create_connection(("127.0.0.1", self._server.port), WAIT_SECONDS) as connection:
            connection.sendall(self._request() * PIPELINED)
            self._check("pipelined requests", connection, PIPELINED)

    def _connect(self) -> None:
        with contextlib.ExitStack() as stack:
            address = ("127.0.0.1", self._server.port)
            connections = [
                stack.enter_context(socket.create_connection(address, WAIT_SECONDS)) for _ in range(CONNECTIONS)
            ]
            for each in connections:
                each.sendall(self._request())
            for each in connections:
                self._check("many connections", each, 1)

    def _check(self, what: str, connection: socket.socket, count: int) -> None:
        """Reads `count` answers: predictions, or a last one that says that the server is busy."""
        with connection.makefile("rb") as file:
            for number in range(count):
                line = file.readline()
                status = int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
                length, closes = 0, False
                while header := file.readline().strip().lower():
                    closes |= header == b"connection: close"
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                body = file.read(length)
                if status not in (200, 429) or status == 200 and len(json.loads(body)["predictions"]) != 1:
                    self.wrong.append(f"{what}, answer {number}: {line!r} {body[:200]!r}")
                if closes or not status:  # The server refuses the rest, and has said so.
                    return


def dead_letters(model_dir: pathlib.Path) -> set[tuple[int, int]]:
    """Returns partition and offset of each dead letter."""
    path = model_dir / "dead_letters.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(found["partition"], found["offset"]) for found in map(json.loads, lines)}


def refused_topics(address: str, work: pathlib.Path, model_dir: pathlib.Path, records: int, times: int) -> list[str]:
    """Creates the topic again, with `records` records, and continues the training; describes what was not refused."""
    from confluent_kafka.admin import AdminClient

    wrong, admin = [], AdminClient({"bootstrap.servers": address, "log_level": 0})
    for number in range(times):
        admin.delete_topics([TOPIC])[TOPIC].result(WAIT_SECONDS)
        brokers.make_topic(address, TOPIC, PARTITIONS)
        rows = itertools.islice(clicks(6 + number, kills.COLUMNS, 0, f"new {number}"), records)
        brokers.produce(address, TOPIC, rows, PARTITIONS)
        log = work / "refused.log"
        command = [*sides.COMMAND, "train", "--stream_until=latest", *kills.training_flags(work, address, model_dir)]
        with sides.running(command, log) as process:
            status = process.wait(WAIT_SECONDS)
        said = log.read_text(errors="replace").strip().rpartition("\n")[2]
        if not status or TOPIC not in said:
            wrong.append(f"a topic that was created again: status {status}, {said}")
    return wrong


def lost_shards(work: pathlib.Path, model_dir: pathlib.Path, times: int) -> list[str]:
    """Serves the model from a cluster that loses a shard and gets it back, `times` times; describes wrong answers."""
    asked = {"instances": [without_label(row) for row in itertools.islice(clicks(3, kills.COLUMNS, 0, "asked"), 10)]}
    (work / "cluster").mkdir()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(redis_cluster.running(work / "cluster"))
        sides.call([*sides.COMMAND, "publish", f"--model_dir={model_dir}", f"--to={cluster.url}"])
        server = stack.enter_context(serving(cluster.url, work / "cluster.log", f"--name={NAME}"))
        ask = functools.partial(_ask, server, asked)
        right, wrong = ask()[1], []
        for _ in range(times):
            primary = random.Random(0).choice(cluster.primaries())
            for port in (primary, *cluster.replicas_of(primary)):
                cluster.pause(port)
            sides.wait_until(lambda: ask()[0] in (503, 504), "no answer without a shard", WAIT_SECONDS)
            sides.wait_until(lambda: ask("/healthz")[0] == 503, "503 of /healthz without a shard", WAIT_SECONDS)
            for port in cluster.ports:
                cluster.resume(port)
            cluster.await_whole()
            sides.wait_until(lambda: ask("/healthz")[0] == 200, "200 of /healthz", WAIT_SECONDS)
            sides.wait_until(lambda: ask()[0] == 200, "an answer with all shards", WAIT_SECONDS)
            if ask()[1] != right:
                wrong.append("other scores after the loss of a shard")
    return wrong


def _ask(server: Server, asked: dict[str, Any], path: str = f"/v1/models/{NAME}:predict") -> tuple[int, Any]:
    with contextlib.closing(Client(server.port)) as client:
        return client.ask(path, asked if path.endswith(":predict") else None)[:2]


def measure(times: int) -> dict[str, Any]:
    """Returns the figures of the part `faults` by key."""
    with tempfile.TemporaryDirectory(prefix="faults-") as directory, contextlib.ExitStack() as stack:
        work = pathlib.Path(directory)
        broker = stack.enter_context(brokers.tansu())
        brokers.make_topic(broker.address, TOPIC, PARTITIONS)
        model_dir, publication, log = work / "model", work / "publication", work / "launch.log"
        flags = [*kills.training_flags(work, broker.address, model_dir), f"--publish={publication}", "--publish_secs=2"]
        flags += ["--max_bad_rows=1000"]
        command = [*sides.COMMAND, "launch", "-np", kills.WORKERS, "--max_restarts", 10 * times, "--", *flags]
        process = stack.enter_context(sides.running(command, log))
        until = functools.partial(sides.wait_until, seconds=WAIT_SECONDS, process=process, log=log)
        rows = clicks(1, kills.COLUMNS, 0, "record")
        appender = stack.enter_context(contextlib.closing(Appender(broker.address, RATE, rows, kills.LINGER_MS)))
        until(lambda: list(publication.glob("*/base-*.json")), "the first publication")
        with serving(publication, work / "score.log", f"--name={NAME}") as server:
            faults = Faults(broker, appender, server, model_dir)
            faults.happen(times, until)
        appender.close()
        records = appender.appended + len(faults.good) + len(faults.damaged)
        _, ends = kills.read_topic(broker.address, records)
        until(lambda: kills.saved(model_dir)[1] == ends, "the training of all records")
        process.terminate()
        process.wait(WAIT_SECONDS)
        good = [*(f"record {number}" for number in range(appender.appended)), *faults.good]
        trained = kills.steps_by_key(kills.newest(model_dir))
        not_trained, twice = kills.count(good, *trained)
        print(f"{len(good)} good records, {not_trained} not trained, {twice} trained too often", flush=True)
        damaged = len(faults.damaged) - kills.count(faults.damaged, *trained)[0]
        letters = len(dead_letters(model_dir))
        wrong = [*faults.wrong, *refused_topics(broker.address, work, model_dir, records + 1000, times)]
        wrong += lost_shards(work, model_dir, times)
        for each in wrong:
            print(f"wrong: {each}", flush=True)
    return {
        "lost": not_trained + max(len(faults.damaged) - letters, 0),
        "wrong": twice + damaged + max(letters - len(faults.damaged), 0) + len(wrong),
        "faults": len(faults.events) * times + 2 * times,
        "fault_records": len(good) + len(faults.damaged),
    }
