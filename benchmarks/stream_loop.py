"""From the append of a record to an answer that shows it, and what all parts of `click_to_score.py` share.

`Rows`, `Clicks`, `Appender` and `training` also serve the parts `file` and `kills`.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import psutil
import sides
import tqdm

from tests.scoring.conftest import Client
from tests.scoring.process import serving
from tests.stream import brokers

TOPIC, PARTITIONS, NAME, TIMEOUT_SECONDS = "clicks", 4, "clicks", 180.0
SHOWN = 1e-4
OWN, COLUMNS, VALUES = "own", 8, 1000
SPEC = """
name = "clicks"
[label]
column = "label"
[defaults]
dim = 16
transform = "log1p"
[[dense]]
columns = ["I1..I13"]
[[sparse]]
columns = ["C1..C26"]
"""


class Source(Protocol):
    """Makes the rows of a stream."""

    def next(self) -> dict[str, Any]:
        """Returns the next row."""


class Rows:
    """Rows in the shape of Criteo's, drawn at random; frequent values come often."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._texts = [[f"{value:08x}" for value in rng.zipf(1.2, 4096) % (1 << 20)] for _ in range(26)]
        self._numbers = rng.integers(0, 100, 4096).tolist()
        self._random = random.Random(seed)

    def next(self) -> dict[str, Any]:
        """Returns the next row."""
        draw = self._random.randrange
        row: dict[str, Any] = {"label": int(draw(4) == 0)}
        row |= {f"I{n + 1}": self._numbers[draw(4096)] for n in range(13)}
        return row | {f"C{n + 1}": texts[draw(4096)] for n, texts in enumerate(self._texts)}


class Clicks:
    """Rows with a key of their own each, and with labels that follow from the other columns, but for noise.

    Args:
      name: the keys are "NAME 0", "NAME 1" and so on.
      seed: of the values and the noise; the log odds of a value are the same with each seed.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._log_odds = np.random.default_rng(0).normal(0.0, 0.4, (COLUMNS, VALUES))
        self._draw, self._name, self._number = np.random.default_rng(seed), name, 0
        self._block: list[list[int]] = []

    def next(self) -> dict[str, Any]:
        """Returns the next row."""
        if not self._block:
            values = self._draw.integers(0, VALUES, (4096, COLUMNS))
            logits = self._log_odds[np.arange(COLUMNS), values].sum(axis=1) - 1.0
            labels = self._draw.random(len(values)) < 1.0 / (1.0 + np.exp(-logits))
            self._block = np.column_stack([labels, values]).tolist()
        label, *values = self._block.pop()
        row = {OWN: f"{self._name} {self._number}", "label": label}
        self._number += 1
        return row | {f"C{n + 1}": value for n, value in enumerate(values)}


@dataclasses.dataclass
class Mark:
    """A marked record: its key, the time at which it was appended, and the seconds until an answer showed it."""

    key: str
    row: dict[str, Any]
    appended: float
    seconds: float | None = None


class Appender(threading.Thread):
    """Appends records to the topic at a fixed rate; with `marks_records`, every half second one has a key that is new.

    The producer is idempotent: without that, it appends records twice whose connection is cut before the answer.

    Args:
      address: of the broker.
      rate: records per second.
      rows: where the records come from.
      linger_ms: time that a record waits for others, to be appended with them.
      most: how many records are appended; None for no end.
    """

    def __init__(self, address: str, rate: float, rows: Source, linger_ms: int = 5, most: int | None = None) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": address, "linger.ms": linger_ms, "log_level": 0, "enable.idempotence": True}
        self._producer = Producer(settings)
        self._rate, self._rows, self._most, self._ends = rate, rows, most, threading.Event()
        self.marks: list[Mark] = []
        self.appended, self.marks_records = 0, False

    def run(self) -> None:
        begin, marked = time.monotonic(), 0.0
        while not self._ends.wait(0.01):
            now = time.monotonic()
            if self.marks_records and now - marked >= 0.5:
                marked = now
                self._mark()
            due = int((now - begin) * self._rate)
            for _ in range((due if self._most is None else min(due, self._most)) - self.appended):
                self._append(self._rows.next())
            self._producer.poll(0)
            if self.appended == self._most:
                break
        self._producer.flush(TIMEOUT_SECONDS)

    def close(self) -> None:
        """Ends the appending, once all records are at the broker."""
        self._ends.set()
        self.join(TIMEOUT_SECONDS)

    def _mark(self) -> None:
        key = f"marked {len(self.marks)}"
        row = {**self._rows.next(), "label": 1, "C1": key}
        self._append(row)
        self.marks.append(Mark(key, row, time.monotonic()))

    def _append(self, row: dict[str, Any]) -> None:
        self._producer.produce(TOPIC, json.dumps(row).encode(), partition=self.appended % PARTITIONS)
        self.appended += 1


@contextlib.contextmanager
def running(command: list[object], log: pathlib.Path) -> Iterator[subprocess.Popen]:
    """Gives a process, which the end of the block stops with all of its children."""
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*map(str, command)],
            stdout=out,
            stderr=out,
            cwd=sides.ROOT,
            env=sides.environment(),
            stdin=subprocess.DEVNULL,
        )
    try:
        yield process
    finally:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def training(work: pathlib.Path, address: str, *flags: str, workers: int = 2) -> list[object]:
    """Returns the command of a training from the topic."""
    (work / "clicks.toml").write_text(SPEC)
    start = ["horovodrun", "-np", workers, "--gloo"] if workers > 1 else []
    return [
        *start,
        *(*sides.COMMAND, "train", f"--train_data=kafka://{address}/{TOPIC}"),
        *(f"--feature_spec={work / 'clicks.toml'}", "--model=deepfm", *flags),
    ]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the whole loop, and asks the server for the marked records until its answers show them."""
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(brokers.tansu())
        brokers.make_topic(broker.address, TOPIC, PARTITIONS)
        appender = Appender(broker.address, args.rate, Rows(seed=1))
        appender.start()
        stack.callback(appender.close)
        flags = [f"--model_dir={work / 'model'}", f"--publish={work / 'publication'}"]
        flags += [f"--publish_secs={args.publish_secs:g}", "--batch_size=256", "--save_checkpoints_secs=30"]
        command = training(work, broker.address, *flags)
        process = stack.enter_context(running(command, work / "train.log"))
        place = work / "publication" / "publication.json"
        sides.wait_until(place.exists, "the first publication", TIMEOUT_SECONDS, process, work / "train.log")
        server = stack.enter_context(serving(work / "publication", work / "score.log", f"--name={NAME}"))
        client = stack.enter_context(contextlib.closing(Client(server.port)))
        time.sleep(args.warm_secs)
        appender.marks_records = True
        before, began = appender.appended, time.monotonic()
        for _ in tqdm.trange(int(args.seconds), desc="clicks to scores", unit=" s", disable=not sys.stderr.isatty()):
            _ask_for(appender, client, time.monotonic() + 1.0)
        rate = (appender.appended - before) / (time.monotonic() - began)
        appender.marks_records = False
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while _open(appender) and time.monotonic() < deadline:
            _ask_for(appender, client, time.monotonic() + 1.0)
        if process.poll() is not None or _open(appender):
            raise SystemExit(
                f"{len(_open(appender))} of {len(appender.marks)} marked records were never shown:\n"
                + (work / "train.log").read_text(encoding="utf-8", errors="replace")[-3000:]
            )
        seconds = [mark.seconds for mark in appender.marks if mark.seconds is not None]
        if args.keep_logs:
            for name in ("train.log", "score.log"):
                (pathlib.Path(args.keep_logs) / name).write_bytes((work / name).read_bytes())
    return {
        "click_to_score_p50_secs": round(float(np.percentile(seconds, 50)), 2),
        "click_to_score_p99_secs": round(float(np.percentile(seconds, 99)), 2),
        "marked_records": len(seconds),
        "records_per_sec": round(rate),
    }


def _open(appender: Appender) -> list[Mark]:
    return [mark for mark in list(appender.marks) if mark.seconds is None]


def _ask_for(appender: Appender, client: Client, until: float) -> None:
    """Asks the server again and again for the marked records that no answer has shown yet.

    An answer shows a key if its score differs from the score of the same example with a key that is never trained, by
    more than products of matrices round differently in another row.
    """
    while time.monotonic() < until:
        marks = _open(appender)[:64]
        if marks:
            rows = [{k: v for k, v in mark.row.items() if k != "label"} for mark in marks]
            never = [{**row, "C1": "never trained"} for row in rows]
            status, body, _ = client.ask(f"/v1/models/{NAME}:predict", {"instances": rows + never})
            now = time.monotonic()
            if status != 200:
                raise SystemExit(f"the server answered {status}: {body}")
            scores = [each["probabilities"] for each in body["predictions"]]
            for mark, own, other in zip(marks, scores, scores[len(marks) :], strict=False):
                if abs(own - other) > SHOWN:
                    mark.seconds = now - mark.appended
        time.sleep(0.02)
