"""Measures, for `click_to_score.py`, how much slower a score server responds while new towers and rows arrive.

Phases without arrivals alternate with phases in which a publisher process delivers a record every 1.3 s, while a
separate process sends requests at a fixed rate. Each record has a dense tower and an epoch of rows. The time of a
request is measured from its due time, even if all connections are waiting for responses then.
"""

import concurrent.futures
import contextlib
import dataclasses
import gc
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing import synchronize
from typing import Any

import numpy as np
import sides

from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.delivery import start_delivery
from ctr_trainer.live.publication.records import Record
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.training_configs import RedisFiles
from tests.scoring import trained
from tests.scoring.conftest import Client
from tests.scoring.process import TIMEOUT_SECONDS, serving

ROUNDS, EXAMPLES, BODIES, RATE, CONNECTIONS = 5, 10, 64, 300.0, 16
MORE_ROWS, HIDDEN_UNITS, ARRIVAL_SECONDS, STEADY_ARRIVALS, WARM_SECONDS = 20_000, (512, 256), 1.3, 12, 5.0


class Spool:
    """A publication whose files all exist before the first request; `release` writes its records one by one."""

    def __init__(self, place: pathlib.Path, epochs: int) -> None:
        self.path = place / "spool"
        model = trained.train(place / "model", HIDDEN_UNITS)
        self.instances = model.instances
        publishing = trained.Publishing(self.path, model, MORE_ROWS)
        first = [publishing.publish(number) for number in (0, 1, 0)]
        self.released = first[-1].epoch
        self._records = [self._copy(first[1 + n % 2], self.released + 1 + n) for n in range(epochs)]

    def release(self) -> None:
        """Writes the next record."""
        record = dataclasses.replace(self._records.pop(0), time=time.time())
        records.write_record(self.path, record)
        self.released = record.epoch

    def _copy(self, record: Record, epoch: int) -> Record:
        """Copies the files of a record, and returns a record of another epoch that names the copies."""
        place = pathlib.Path(str(records.generation_path(self.path, record.generation)))
        name = records.name_of(records.EPOCH, epoch)
        shutil.copytree(place / record.dense, place / records.name_of(records.DENSE, epoch))
        shutil.copytree(place / records.name_of(record.kind, record.epoch), place / name)
        files = [{**entry, "file": f"{name}/{os.path.basename(entry['file'])}"} for entry in record.files]
        return dataclasses.replace(record, epoch=epoch, files=files)


def send_at_rate(
    port: int, bodies: list[bytes], out: pathlib.Path, begun: synchronize.Event, ended: synchronize.Event
) -> None:
    """Sends requests at RATE until `ended`, and writes float64[requests, 3] to a file.

    The columns are the due time of the request on the monotonic clock, the seconds from then to the response, and the
    HTTP status, 0 without a response.
    """
    gc.disable()
    local, found = threading.local(), list[tuple[float, float, int]]()

    def ask(due: float, body: bytes) -> None:
        local.client = getattr(local, "client", None) or Client(port)
        try:
            status = local.client.ask(f"/v1/models/{trained.NAME}:predict", body)[0]
        except (OSError, http.client.HTTPException):
            local.client, status = None, 0  # The next request opens a new connection.
        found.append((due, time.monotonic() - due, status))

    begun.set()
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as threads:
        for number in itertools.count():
            due = began + number / RATE
            if ended.wait(max(due - time.monotonic(), 0)):
                break
            threads.submit(ask, due, bodies[number % len(bodies)])
        threads.shutdown(cancel_futures=True)
    np.save(out, np.array(found, np.float64))


def measure(epochs: int = 100) -> dict[str, Any]:
    """Returns the figures of the part `switches` by key; `epochs` is the total number of records that arrive."""
    distributed.init()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        place = pathlib.Path(directory)
        spool, target = Spool(place, epochs), place / "publication"
        draw = np.random.default_rng(0)
        chosen = [draw.choice(len(spool.instances), EXAMPLES, replace=False) for _ in range(BODIES)]
        bodies = [json.dumps({"instances": [spool.instances[each] for each in some]}).encode() for some in chosen]
        stack.enter_context(start_delivery(spool.path, str(target), RedisFiles(), place / "publish.log"))
        sides.wait_until(lambda: records.find_current(target)[1], "the first publication", TIMEOUT_SECONDS)
        server = stack.enter_context(serving(target, place / "score.log"))
        client = stack.enter_context(contextlib.closing(Client(server.port)))
        processes, out = multiprocessing.get_context("spawn"), place / "requests.npy"
        begun, ended = processes.Event(), processes.Event()
        sender = processes.Process(target=send_at_rate, args=(server.port, bodies, out, begun, ended), daemon=True)
        sender.start()
        begun.wait(TIMEOUT_SECONDS)
        phases = list[tuple[str, float, float]]()
        memory: dict[str, list[float]] = {"steady": [], "switches": []}
        time.sleep(WARM_SECONDS)
        for phase, arrivals in ROUNDS * (("steady", STEADY_ARRIVALS), ("switches", epochs // ROUNDS)):
            began = time.monotonic()
            for number in range(arrivals):
                if phase == "switches":
                    spool.release()
                memory[phase].append(server.resident_mb())
                time.sleep(max(began + (number + 1) * ARRIVAL_SECONDS - time.monotonic(), 0))
            sides.wait_until(
                lambda: client.ask("/healthz")[1]["epoch"] == spool.released, "the last record", TIMEOUT_SECONDS
            )
            phases.append((phase, began, time.monotonic()))
        ended.set()
        sender.join(TIMEOUT_SECONDS)
        found = np.load(out)
        switched = (place / "score.log").read_text().count("global step") - 1
    return _summary(found, phases) | {
        "memory_during_switches_over_before": round(max(memory["switches"]) / memory["steady"][0], 3),
        "switches": switched,
    }


def _summary(found: np.ndarray, phases: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Returns the P99 of both kinds of phases and their ratio, as medians over the rounds, and the number of errors."""
    due, seconds, status = found.T
    figures = []
    for phase, begin, end in phases:
        some = seconds[(due >= begin) & (due < end)] * 1000
        if len(some) < (end - begin) * RATE / 2:  # Requests that were due at the end of the run were never sent.
            sent = len(found) / (phases[-1][2] - phases[0][1])
            sys.exit(f"the server answers {sent:.0f} requests/s, and {RATE:.0f} were due: use a less loaded machine")
        figures.append(np.percentile(some, (50, 99, 99.9)))
        print(f"{phase}: {len(some)} requests, ms at 50, 99, 99.9%: {np.round(figures[-1], 2).tolist()}", flush=True)
    p99 = np.array(figures)[:, 1]
    return {
        "p99_during_switches_over_steady": round(statistics.median((p99[1::2] / p99[::2]).tolist()), 2),
        "errors_during_switches": int((status != 200).sum()),
        "p99_steady_ms": round(float(np.median(p99[::2])), 2),
        "p99_switches_ms": round(float(np.median(p99[1::2])), 2),
    }
