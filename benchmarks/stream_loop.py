"""The part `loop` of `click_to_score.py`, and code that it shares with the part `kills`."""

import argparse
import contextlib
import itertools
import json
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import sides

from tests.scoring.conftest import Client
from tests.scoring.process import serving
from tests.stream import brokers

TOPIC, PARTITIONS, NAME, TIMEOUT_SECONDS = "clicks", 4, "clicks", 180.0
MARK_SECONDS, SHOWN = 0.5, 1e-4
OWN, VALUES, BLOCK = "own", 1000, 4096
Row = dict[str, Any]
NUMBERS, COLUMNS = 13, 26  # As in Criteo's rows.
SPEC = sides.ROOT / "configs" / "features" / "demo.toml"
LOOK_SECONDS = 0.005
WARM_SECONDS = 15.0  # The time that the loop runs before the first marked record.


def log_odds(columns: int) -> np.ndarray:
    """Returns float64[columns, VALUES], the contribution of each value to the log odds of a click; always the same."""
    return np.random.default_rng(0).normal(0.0, 0.4, (columns, VALUES))


def clicks(seed: int, columns: int = COLUMNS, numbers: int = NUMBERS, name: str = "") -> Iterator[Row]:
    """Yields infinitely many rows whose labels depend on the values of `C1`, `C2` and so on, and on noise.

    With a name, each row has a unique value in the column OWN: "NAME 0", "NAME 1" and so on.
    """
    draw, odds = np.random.default_rng(seed), log_odds(columns)
    for first in itertools.count(0, BLOCK):
        values = draw.zipf(1.2, (BLOCK, columns)) % VALUES
        logits = odds[np.arange(columns), values].sum(axis=1) - 1.0
        labels = draw.random(BLOCK) < 1.0 / (1.0 + np.exp(-logits))
        dense = draw.integers(0, 100, (BLOCK, numbers))
        for at, (label, own, more) in enumerate(zip(labels.tolist(), values.tolist(), dense.tolist(), strict=True)):
            row: Row = {OWN: f"{name} {first + at}"} if name else {}
            row |= {"label": int(label)} | {f"C{n}": f"{value:08x}" for n, value in enumerate(own, 1)}
            yield row | {f"I{n}": number for n, number in enumerate(more, 1)}


def without_label(row: Row) -> Row:
    """Returns the features of a row."""
    return {name: value for name, value in row.items() if name != "label"}


class Appender(threading.Thread):
    """Appends the rows to the topic, `rate` records per second, until `close`.

    A record waits up to `linger_ms` for other records, with which it is appended. The producer is idempotent: otherwise
    it would append records again if the connection is cut before the response.
    """

    def __init__(self, address: str, rate: float, rows: Iterator[Row], linger_ms: int) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": address, "linger.ms": linger_ms, "log_level": 0, "enable.idempotence": True}
        self._producer = Producer(settings)
        self._rate, self._rows, self._ends = rate, rows, threading.Event()
        self.appended = 0
        self.start()

    def run(self) -> None:
        begin = time.monotonic()
        for row in self._rows:
            while time.monotonic() < begin + self.appended / self._rate and not self._ends.wait(0.01):
                self._producer.poll(0)
            if self._ends.is_set():
                break
            self.append_bytes(json.dumps(row).encode())
            self.appended += 1
        self._producer.flush(TIMEOUT_SECONDS)

    def append_bytes(self, value: bytes, event_seconds: float | None = None) -> None:
        """Appends a message as it is, with an event time in seconds since 1970; the default is now."""
        when: dict[str, Any] = {} if event_seconds is None else {"timestamp": int(1000 * event_seconds)}
        self._producer.produce(TOPIC, value, partition=self.appended % PARTITIONS, **when)
        self._producer.poll(0)

    def close(self) -> None:
        """Stops the thread, and waits until the broker has all records."""
        self._ends.set()
        self.join(TIMEOUT_SECONDS)


class StreamAppender(threading.Thread):
    """Appends the rows to streams of Redis, `rate` records per second, until `close`. `appended` counts them."""

    def __init__(self, client: Any, rate: float, rows: Iterator[Row]) -> None:
        super().__init__(daemon=True)
        self._client, self._rate, self._rows, self._ends = client, rate, rows, threading.Event()
        self.appended = 0
        for number in range(PARTITIONS):  # A group makes a stream that is not there yet.
            client.xgroup_create(f"{TOPIC}:{number}", TOPIC, mkstream=True)
        self.start()

    def run(self) -> None:
        begin = time.monotonic()
        while not self._ends.wait(LOOK_SECONDS):
            pipeline = self._client.pipeline(transaction=False)
            for row in itertools.islice(self._rows, int(self._rate * (time.monotonic() - begin)) - self.appended):
                pipeline.xadd(f"{TOPIC}:{self.appended % PARTITIONS}", {"value": json.dumps(row)})
                self.appended += 1
            pipeline.execute()

    def append(self, row: Row) -> None:
        """Appends a record immediately, in addition to the records at the fixed rate."""
        self._client.xadd(f"{TOPIC}:0", {"value": json.dumps(row)})

    def close(self) -> None:
        self._ends.set()
        self.join(TIMEOUT_SECONDS)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    """Runs the whole loop, and requests scores of the marked records until the responses show their training."""
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis, address = stack.enter_context(brokers.redis_server(work))
        rows, log, publication = clicks(seed=1), work / "train.log", work / "publication"
        appender = stack.enter_context(contextlib.closing(StreamAppender(redis, flags.rate, rows)))
        own = [f"--model_dir={work / 'model'}", f"--publish={publication}", f"--publish_secs={flags.publish_secs:g}"]
        own += ["--batch_size=256", "--save_checkpoints_secs=30", "--stream_wait_secs=0.1"]
        own += [f"--train_data=redis://{address}/{TOPIC}", f"--feature_spec={SPEC}", "--model=deepfm"]
        job = ["horovodrun", "-np", 2, "--gloo", *sides.COMMAND, "train", *own]
        process = stack.enter_context(sides.running(job, log))
        sides.wait_until(
            lambda: list(publication.glob("*/base-*.json")), "the first publication", TIMEOUT_SECONDS, process, log
        )
        server = stack.enter_context(serving(publication, work / "score.log", f"--name={NAME}"))
        client = stack.enter_context(contextlib.closing(Client(server.port)))
        time.sleep(WARM_SECONDS)
        before, began = appender.appended, time.monotonic()
        seconds = _until_shown(appender, client, flags.seconds, log)
        rate = (appender.appended - before) / (time.monotonic() - began)
    return {
        "click_to_score_p50_secs": round(float(np.percentile(seconds, 50)), 2),
        "click_to_score_p99_secs": round(float(np.percentile(seconds, 99)), 2),
        "marked_records": len(seconds),
        "records_per_sec": round(rate),
    }


def _until_shown(appender: StreamAppender, client: Client, seconds: float, log: pathlib.Path) -> list[float]:
    """Appends a record with a new key every MARK_SECONDS; returns the seconds until a response has shown each key."""
    like, waiting, found = next(clicks(seed=2)), list[tuple[Row, float]](), list[float]()
    began = now = time.monotonic()
    while waiting or now < began + seconds:
        marked = len(waiting) + len(found)
        if began + marked * MARK_SECONDS <= now < began + seconds:
            row = {**like, "label": marked % 2, "C1": f"marked {marked}"}
            appender.append(row)
            waiting.append((row, time.monotonic()))
        asked, waiting = waiting[:64], waiting[64:]
        are_shown = shown(client, [row for row, _ in asked]) if asked else []
        now = time.monotonic()
        found += [now - since for (_, since), is_shown in zip(asked, are_shown, strict=True) if is_shown]
        waiting += [each for each, is_shown in zip(asked, are_shown, strict=True) if not is_shown]
        if now > began + seconds + TIMEOUT_SECONDS:
            raise SystemExit(f"{len(waiting)} of {marked} marked records were never shown:\n{log.read_text()[-3000:]}")
        time.sleep(0.02)
    return found


def shown(client: Client, rows: list[Row]) -> list[bool]:
    """Returns for each row whether the server's response shows that its key in `C1` was trained.

    The key was trained if the logit differs from that of the same example with an untrained key by more than the
    rounding differences of matrix products between rows. Probabilities near 0 or 1 would hide it.
    """
    instances = [without_label(row) for row in rows]
    never = [{**each, "C1": "never trained"} for each in instances]
    status, body, _ = client.ask(f"/v1/models/{NAME}:predict", {"instances": instances + never})
    if status != 200:
        raise SystemExit(f"the server answered {status}: {body}")
    scores = np.array([each["logits"] for each in body["predictions"]])
    return (np.abs(scores[: len(rows)] - scores[len(rows) :]) > SHOWN).tolist()
