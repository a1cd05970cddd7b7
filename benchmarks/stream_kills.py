"""The part `kills` of `click_to_score.py`: how many records of a stream are lost or repeated after random kills.

docs/benchmarks.md describes the processes, the kills and the figures. `launch` restarts a killed worker or service,
rank 0 restarts the publisher, librdkafka restores a cut connection, and this program restarts a score server.

Each record has a unique key, so only this record trains the key's row. The number t of the row's steps follows from its
Adam state, `c1 = 1 - beta1^t`. These numbers, from the last checkpoint, are compared with the records of the topic. The
same topic is then trained without kills, and both models are evaluated on the same held-out rows.
"""

import concurrent.futures
import contextlib
import functools
import http.client
import itertools
import json
import pathlib
import random
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import sides
from stream_loop import NAME, OWN, PARTITIONS, TOPIC, Appender, Row, clicks, without_label

from ctr_trainer.checkpoint.checkpoint import Checkpoint, latest_checkpoint, list_checkpoints
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.features import hashing
from ctr_trainer.live.stream.plan import StreamPosition
from tests import ports
from tests.launch import processes
from tests.scoring.conftest import Client
from tests.scoring.process import Server, serving
from tests.service.proxy import CuttingProxy
from tests.stream import brokers

KINDS = ("worker", "service", "publisher", "connection", "server")
Until = Callable[[Callable[[], Any], str], Any]  # See `sides.wait_until`.
WORKERS, COLUMNS, DIM, BETA1, HELD_OUT, EXAMPLES = 2, 8, 4, 0.9, 100_000, 10
WAIT_SECONDS, REQUEST_SECONDS, MOST_RESTARTS = 900.0, 0.05, 20
LINGER_MS = 100  # With hundreds of thousands of small batches, the broker would take seconds for a fetch.
SPEC = f"""
name = "clicks"
label = {{column = "label"}}
sparse = [{{columns = ["{OWN}", "C1..C{COLUMNS}"], dim = {DIM}}}]
"""


class Servers:
    """Two score servers of a publication; `kill` kills them in turn and starts a replacement."""

    def __init__(self, publication: pathlib.Path, work: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self._publication, self._work, self._stack = publication, work, stack
        self._numbers = itertools.count()
        self.running: list[Server] = []
        self._threads = concurrent.futures.ThreadPoolExecutor(1)
        self._start()
        self._starting = self._threads.submit(self._start)
        self._starting.result()

    def kill(self) -> None:
        """Kills the server that has run longest, after waiting until the other one serves."""
        self._starting.result()
        self.running[0].process.kill()
        self._starting = self._threads.submit(self._start)

    def wait_for_step(self, step: int) -> None:
        """Waits until both servers serve a step."""
        self._starting.result()
        for server in self.running:
            is_served = functools.partial(self._serves, server, step)
            sides.wait_until(is_served, f"step {step} at a score server", WAIT_SECONDS, server.process)

    def _start(self) -> None:
        log = self._work / f"score-{next(self._numbers)}.log"
        server = self._stack.enter_context(serving(self._publication, log, f"--name={NAME}"))
        self.running = [*self.running[-1:], server]

    def _serves(self, server: Server, step: int) -> bool:
        with contextlib.closing(Client(server.port)) as client:
            return client.ask("/healthz")[1].get("global_step") == step


def ask_until(ends: threading.Event, servers: Servers, instances: list[Row]) -> tuple[int, int]:
    """Repeats a request until `ends`; if a server does not answer, the request is sent to the other server.

    Returns the number of requests, and the number of those that no server answered with status 200.
    """

    def is_answered(port: int) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(Client(port)) as client:
            return client.ask(f"/v1/models/{NAME}:predict", {"instances": instances})[0] == 200
        return False

    sent = failed = 0
    while not ends.wait(REQUEST_SECONDS):
        sent += 1
        failed += not any(is_answered(server.port) for server in servers.running[::-1])
    return sent, failed


def training_workers(model_dir: pathlib.Path) -> list[psutil.Process]:
    """Returns each rank's worker of the earliest start, which trains; workers of later starts wait until it ends."""
    latest_first = sorted(processes.workers(model_dir).items(), reverse=True)
    return [*{rank: process for (rank, _), process in latest_first}.values()]


def services(model_dir: pathlib.Path) -> list[psutil.Process]:
    """Returns the processes of the embedding service."""
    return processes.of_job(model_dir, "ctr_trainer", "serve")


def kill_at_random(
    model_dir: pathlib.Path, until: Until, proxy: CuttingProxy, servers: Servers, kills: int, kill_secs: float
) -> None:
    """Kills `kills` times, every `kill_secs` seconds on average.

    Before it kills a worker or the service, it waits at most `kill_secs` for a checkpoint since the last such kill.
    Therefore most of these kills hit a job that trains, and the others hit a job that starts.
    """
    draw, kinds, step = random.Random(0), list[str](), -1
    find: dict[str, Callable[[], list[psutil.Process]]] = {
        "worker": functools.partial(training_workers, model_dir),
        "service": functools.partial(services, model_dir),
        "publisher": functools.partial(processes.of_job, model_dir, "ctr_trainer", "publish"),
    }
    for number in range(1, kills + 1):
        kind = (kinds := kinds or draw.sample(KINDS, len(KINDS))).pop()
        if kind in ("worker", "service"):
            deadline = time.monotonic() + kill_secs
            while saved(model_dir)[0] <= step and time.monotonic() < deadline:
                time.sleep(0.1)
        time.sleep(draw.uniform(0.5, 1.5) * kill_secs)
        if kind == "connection":
            proxy.cut()
        elif kind == "server":
            servers.kill()
        else:
            draw.choice(until(find[kind], f"a running {kind}")).kill()
        reached, offsets = saved(model_dir)
        step = reached if kind in ("worker", "service") else step
        print(f"kill {number} of {kills}: {kind}; {sum(offsets.values())} records are trained", flush=True)


def read_topic(address: str, most: int) -> tuple[list[bytes], dict[int, int]]:
    """Returns at most `most` records of a topic, and its end offsets by partition."""
    import confluent_kafka

    consumer: Any = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "count", "log_level": 0})
    values, ends, idle_since = list[bytes](), dict.fromkeys(range(PARTITIONS), 0), time.monotonic()
    with contextlib.closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in ends])
        while len(values) < most and time.monotonic() - idle_since < 20.0:
            for message in consumer.consume(10_000, 0.5):
                if message.error() is None:
                    values.append(message.value())
                    ends[message.partition()] = message.offset() + 1
                    idle_since = time.monotonic()
    return values, ends


def steps_by_key(checkpoint: Checkpoint) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sorted keys of all rows, int64[n], and the number of Adam steps of each row, float64[n]."""
    keys, steps = [np.empty(0, np.int64)], [np.empty(0)]
    for config, of, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
        c1 = rows[:, config.weights + 2 * config.dims[0]].astype(np.float64)  # After m and v of the first segment.
        keys.append(of.copy())
        steps.append(np.log1p(-np.minimum(c1, 1 - 1e-9)) / np.log(BETA1))
    order = np.argsort(np.concatenate(keys))
    return np.concatenate(keys)[order], np.concatenate(steps)[order]


def count(names: list[str], keys: np.ndarray, steps: np.ndarray) -> tuple[int, int]:
    """Returns the number of keys that were not trained, and of those that were trained more often than in the topic.

    `names` has the unique key of each record of the topic; `keys` and `steps` are the results of `steps_by_key`.
    """
    own, appended = np.unique(hashing.keys(OWN, pa.array(names)), return_counts=True)
    places = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
    found = np.where(keys[places] == own, steps[places], 0.0)
    if (wrong := np.abs(found - np.round(found)) > 0.01).any():
        raise SystemExit(f"{wrong.sum()} rows were trained {found[wrong][:5]} times, which are no whole numbers")
    return int((np.round(found) == 0).sum()), int((np.round(found) > appended).sum())


def training_flags(work: pathlib.Path, address: str, model_dir: pathlib.Path) -> list[str]:
    """Returns the flags of a training from the topic."""
    (work / "clicks.toml").write_text(SPEC)
    return [
        *(f"--train_data=kafka://{address}/{TOPIC}", f"--feature_spec={work / 'clicks.toml'}"),
        *(f"--model_dir={model_dir}", "--model=deepfm", "--hidden_units=64,32", "--batch_size=256"),
        *("--embedding_optimizer=adam", f"--embedding_optimizer_params=beta1={BETA1}"),
        *("--embedding_learning_rate=0.002", "--lr_schedule=constant", "--embedding_lr_schedule=constant"),
        "--save_checkpoints_secs=5",
    ]


def run_with_kills(work: pathlib.Path, proxy: CuttingProxy, kills: int, kill_secs: float, records: int) -> dict:
    """Runs the job with kills, and returns the figures about the job and its records; see `measure`."""
    publication, model_dir, log = work / "publication", work / "killed", work / "launch.log"
    flags = [*training_flags(work, proxy.address, model_dir), f"--publish={publication}", "--publish_secs=2"]
    command = [*sides.COMMAND, "launch", "-np", WORKERS, "--max_restarts", MOST_RESTARTS, "--", *flags]
    asked = [without_label(row) for row in itertools.islice(clicks(3, COLUMNS, 0, "asked"), EXAMPLES)]
    rows = itertools.islice(clicks(1, COLUMNS, 0, "record"), records)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(sides.running(command, log))
        until = functools.partial(sides.wait_until, seconds=WAIT_SECONDS, process=process, log=log)
        until(lambda: list(publication.glob("*/base-*.json")), "the first publication")
        servers = Servers(publication, work, stack)
        rate = records / kills / kill_secs
        appender = stack.enter_context(contextlib.closing(Appender(proxy.address, rate, rows, LINGER_MS)))
        threads, killed = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)), threading.Event()
        stack.callback(killed.set)
        requests = threads.submit(ask_until, killed, servers, asked)
        kill_at_random(model_dir, until, proxy, servers, kills, kill_secs)
        killed.set()
        sent, failed = requests.result(WAIT_SECONDS)
        appender.join(WAIT_SECONDS)
        values, ends = read_topic(proxy.address, records)
        names = [json.loads(value)[OWN] for value in values]
        print(f"{records} records to append, {len(names)} in the topic, {len(set(names))} of them distinct", flush=True)
        last = saved(model_dir)[0]
        # A training that is stopped while it starts publishes nothing; the last kill may have come just before.
        until(lambda: saved(model_dir)[0] > last and saved(model_dir)[1] == ends, "the training of all records")
        process.terminate()
        process.wait(WAIT_SECONDS)
        checkpoint = newest(model_dir)
        servers.wait_for_step(checkpoint.step)
    not_trained, twice = count(names, *steps_by_key(checkpoint))
    restarts = [float(secs) for secs in re.findall(r"training again after ([\d.]+) s", log.read_text(errors="replace"))]
    return {
        "records": len(names),
        "kill_runs": kills,
        "records_not_trained": not_trained,
        "records_trained_twice": twice,
        "restarts": len(restarts),
        "restart_secs": statistics.median(restarts) if restarts else None,
        "requests_during_kills": sent,
        "requests_failed_during_kills": failed,
    }


def newest(model_dir: pathlib.Path) -> Checkpoint:
    """Returns the newest checkpoint, which there must be."""
    return list_checkpoints(str(model_dir))[-1]


def saved(model_dir: pathlib.Path) -> tuple[int, dict[int, int]]:
    """Returns the step of the newest checkpoint, 0 without one, and the offsets up to which it has trained."""
    found = latest_checkpoint(str(model_dir))
    position = StreamPosition.from_dict(found.position) if found else None
    return (found.step, position.trained()) if found and position else (0, {})


def measure(kills: int, kill_secs: float, records: int, held_out: int = HELD_OUT) -> dict[str, Any]:
    """Returns the figures of the part `kills` by key; the records are appended during the kills, at a constant rate."""
    with tempfile.TemporaryDirectory(prefix="kills-") as directory, contextlib.ExitStack() as stack:
        work, port = pathlib.Path(directory), ports.free_port()
        proxy = stack.enter_context(contextlib.closing(CuttingProxy(f"127.0.0.1:{port}")))
        stack.enter_context(brokers.tansu(port, proxy.address))
        brokers.make_topic(proxy.address, TOPIC, PARTITIONS)
        found = run_with_kills(work, proxy, kills, kill_secs, records)
        start = ["horovodrun", "-np", WORKERS, "--gloo", *sides.COMMAND, "train", "--stream_until=latest"]
        sides.call([*start, *training_flags(work, proxy.address, work / "undisturbed")])
        trained = sides.summary(work / "undisturbed")["examples"]
        if trained != found["records"]:
            raise SystemExit(f"the undisturbed training has {trained} examples of {found['records']}")
        rows = itertools.islice(clicks(2, COLUMNS, 0, "held out"), held_out)
        pq.write_table(pa.Table.from_pylist([*rows]), work / "held_out.parquet")
        data = f"--eval_data={work / 'held_out.parquet'}"
        killed, undisturbed = (
            sides.last_json(sides.call([*sides.COMMAND, "evaluate", f"--model_dir={work / name}", data]))
            for name in ("killed", "undisturbed")
        )
        print(f"with kills: {killed}\nundisturbed: {undisturbed}", flush=True)
    return found | {
        "auc_minus_undisturbed": round(killed["auc"] - undisturbed["auc"], 5),
        "log_loss_minus_undisturbed": round(killed["logloss"] - undisturbed["logloss"], 5),
    }
