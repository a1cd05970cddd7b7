"""Measures the loop from a click to the score of the next request: broker, two workers, service, publisher and server.

    python benchmarks/click_to_score.py                        # all parts
    python benchmarks/click_to_score.py --parts=loop --seconds=60
    python benchmarks/click_to_score.py --parts=file --records=200000 --rounds=3

| part | what it measures |
|---|---|
| loop | seconds from the append of a record with a new key until an answer of the server shows that it was trained |
| file | examples/s that one worker trains from the broker over examples/s from the same rows in Parquet |
| candidates | candidates per second of requests with one context over those of expanded rows, see `candidates.py` |
| delayed | the shares of the gaps of late labels that `--delayed_labels` closes, see `delayed_labels.py` |
| switches | the 99th percentile of answers while towers and rows arrive, over that without, see `switches.py` |

The last line is JSON. The keys of a part that did not run are null.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import tqdm

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import sides  # noqa: E402
from serving_load import serving  # noqa: E402

from tests.scoring.conftest import Client  # noqa: E402
from tests.stream import brokers  # noqa: E402

TOPIC, PARTITIONS, NAME, TIMEOUT_SECONDS = "clicks", 4, "clicks", 180.0
SHOWN = 1e-4
KEYS = {
    "loop": ("click_to_score_p50_secs", "click_to_score_p99_secs", "marked_records", "records_per_sec"),
    "file": ("stream_over_file", "stream_over_file_json", "stream_over_file_arrow"),
    "delayed": ("delayed_auc_gap_closed", "delayed_nll_gap_closed", "delayed_copc"),
    "candidates": ("candidates_speedup", "candidates_speedup_http", "candidates_speedup_flight"),
    "switches": (
        *("p99_during_switches_over_steady", "errors_during_switches", "p99_steady_ms", "p99_switches_ms"),
        *("memory_during_switches_over_before", "switches"),
    ),
}
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


@dataclasses.dataclass
class Mark:
    """A marked record: its key, the time at which it was appended, and the seconds until an answer showed it."""

    key: str
    row: dict[str, Any]
    appended: float
    seconds: float | None = None


class Appender(threading.Thread):
    """Appends records to the topic at a fixed rate, every half second one of them with a key that is new."""

    def __init__(self, address: str, rate: float, seed: int) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
        self._rate, self._rows, self._ends = rate, Rows(seed), threading.Event()
        self.marks: list[Mark] = []
        self.appended, self.marks_records = 0, False

    def run(self) -> None:
        begin, marked = time.monotonic(), 0.0
        while not self._ends.wait(0.01):
            now = time.monotonic()
            if self.marks_records and now - marked >= 0.5:
                marked = now
                self._mark()
            for _ in range(int((now - begin) * self._rate) - self.appended):
                self._append(self._rows.next())
            self._producer.poll(0)
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
            cwd=HERE.parent,
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


def wait_until(condition: Callable[[], bool], what: str, process: subprocess.Popen, log: pathlib.Path) -> None:
    """Returns once the condition holds; ends the program with the end of the log if the process ends or time is up."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise SystemExit(f"waited for {what} in vain; the end of {log.name}:\n{tail}")
        time.sleep(0.1)


def training(work: pathlib.Path, address: str, *flags: str, workers: int = 2) -> list[object]:
    """Returns the command of a training from the topic."""
    (work / "clicks.toml").write_text(SPEC)
    start = ["horovodrun", "-np", workers, "--gloo"] if workers > 1 else []
    return [
        *start,
        *(sys.executable, "-m", "ctr_trainer", "train", f"--train_data=kafka://{address}/{TOPIC}"),
        *(f"--feature_spec={work / 'clicks.toml'}", "--model=deepfm", *flags),
    ]


def measure_loop(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the whole loop, and asks the server for the marked records until its answers show them."""
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(brokers.tansu())
        brokers.make_topic(broker.address, TOPIC, PARTITIONS)
        appender = Appender(broker.address, args.rate, seed=1)
        appender.start()
        stack.callback(appender.close)
        flags = [f"--model_dir={work / 'model'}", f"--publish={work / 'publication'}"]
        flags += [f"--publish_secs={args.publish_secs:g}", "--batch_size=256", "--save_checkpoints_secs=30"]
        command = training(work, broker.address, *flags)
        process = stack.enter_context(running(command, work / "train.log"))
        place = work / "publication" / "publication.json"
        wait_until(place.exists, "the first publication", process, work / "train.log")
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


def measure_file(args: argparse.Namespace) -> dict[str, Any]:
    """Trains the same rows from the broker and from Parquet, in turn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = Rows(seed=2)
    table = pa.Table.from_pylist([rows.next() for _ in range(args.records)])
    messages = {"json": [json.dumps(row).encode() for row in table.to_pylist()], "arrow": []}
    for at in range(0, len(table), 1024):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, 1024))
        messages["arrow"].append(sink.getvalue().to_pybytes())
    ratios: dict[str, list[float]] = {kind: [] for kind in messages}
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        pq.write_table(table, work / "rows.parquet", row_group_size=50_000)
        for number in range(args.rounds):
            for kind, records in messages.items():
                rates = {}
                with brokers.tansu() as broker:  # A broker whose memory has nothing of the other kind.
                    brokers.make_topic(broker.address, TOPIC, PARTITIONS)
                    brokers.produce(broker.address, TOPIC, records, PARTITIONS)
                    for place in ("stream", "file"):
                        model = work / f"{number}-{kind}-{place}"
                        line = training(work, broker.address, f"--model_dir={model}", "--batch_size=1024", workers=1)
                        line += ["--stream_from=earliest", "--stream_until=latest"]
                        if place == "file":
                            line = [each for each in line if not str(each).startswith("--stream")]
                            line += [f"--train_data={work / 'rows.parquet'}"]
                        sides.call(line)
                        summary = json.loads((model / "train_summary.json").read_text())
                        if summary["examples"] != args.records:
                            raise SystemExit(f"{summary['examples']} of {args.records} records were trained")
                        rates[place] = summary["examples_per_sec"]
                ratios[kind].append(rates["stream"] / rates["file"])
                print(f"round {number + 1}, {kind}: {rates}", flush=True)
    medians = {kind: round(statistics.median(of), 3) for kind, of in ratios.items()}
    return {"stream_over_file": max(medians.values())} | {f"stream_over_file_{k}": v for k, v in medians.items()}


def measure_delayed(args: argparse.Namespace) -> dict[str, Any]:
    """Measures `--delayed_labels` on simulated streams."""
    return importlib.import_module("delayed_labels").measure()


def measure_candidates(args: argparse.Namespace) -> dict[str, Any]:
    """Measures requests of one context with many candidates."""
    return importlib.import_module("candidates").measure()


def measure_switches(args: argparse.Namespace) -> dict[str, Any]:
    """Measures answers of a server while new towers and rows arrive."""
    return importlib.import_module("switches").measure(args.epochs)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "loop": measure_loop,
    "file": measure_file,
    "delayed": measure_delayed,
    "candidates": measure_candidates,
    "switches": measure_switches,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}")
    parser.add_argument("--rate", type=float, default=2000.0, help="records per second of the part loop")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="time in which the part loop appends marked records"
    )
    parser.add_argument(
        "--warm_secs", type=float, default=15.0, help="time that the loop runs before the first of them"
    )
    parser.add_argument("--publish_secs", type=float, default=2.0, help="publication period of the part loop")
    parser.add_argument("--records", type=int, default=400_000, help="rows of the part file")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the part file")
    parser.add_argument("--epochs", type=int, default=100, help="towers and epochs of rows of the part switches")
    parser.add_argument("--keep_logs", default="", help="directory that keeps the logs of the part loop")
    args = parser.parse_args()
    chosen = args.parts.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"--parts has no part {unknown[0]}: choose from {', '.join(PARTS)}")
    found: dict[str, Any] = {key: None for part in PARTS for key in KEYS[part]}
    for part in chosen:
        print(f"part {part}", flush=True)
        found |= PARTS[part](args)
    print(json.dumps(found | {"cores": len(os.sched_getaffinity(0))}))


if __name__ == "__main__":
    main()
