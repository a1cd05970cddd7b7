"""How much a score server's answers slow down while new towers and rows arrive; for `click_to_score.py`.

Phases without arrivals and phases in which a publisher process delivers a record every 1.3 s alternate, while a process
of its own sends requests at a fixed rate. Each record has a dense tower and an epoch of rows.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import sides

from ctr_trainer.ranks import distributed
from ctr_trainer.serving.publication import records
from ctr_trainer.serving.publication.delivery import DeliveryProcess
from ctr_trainer.serving.publication.records import Record
from ctr_trainer.settings.training_configs import RedisFiles
from tests.scoring import trained
from tests.scoring.conftest import Client
from tests.scoring.process import TIMEOUT_SECONDS, serving

ROUNDS, EXAMPLES, BODIES, RATE = 4, 10, 64, 300.0
MORE_ROWS, HIDDEN_UNITS, ARRIVAL_SECONDS, STEADY_SECONDS, WARM_SECONDS = 20_000, (512, 256), 1.3, 15.0, 5.0


class Spool:
    """A publication whose files are all there before the first request; `release` writes the records that name them.

    Args:
      place: directory of the spool and of the model.
      epochs: how many records `release` can write.
    """

    def __init__(self, place: pathlib.Path, epochs: int) -> None:
        self.path = place / "spool"
        model = trained.train(place / "model", HIDDEN_UNITS)
        self.instances = model.instances
        first = [self._publish(model, 0, 0)]
        first += [self._publish(model, number, epoch, first[0]) for epoch, number in ((1, 1), (2, 0))]
        self.released = first[-1].epoch
        self._records = [self._copy(first[1 + n % 2], self.released + 1 + n) for n in range(epochs)]

    def release(self) -> None:
        """Writes the next record."""
        record = dataclasses.replace(self._records.pop(0), time=time.time())
        records.write_record(self.path, record)
        self.released = record.epoch

    def _publish(self, model: trained.Trained, number: int, epoch: int, graph_of: Record | None = None) -> Record:
        of = model.estimator, model.checkpoints[number]
        return trained.publish(self.path, *of, epoch=epoch, more_rows=MORE_ROWS, graph_of=graph_of)

    def _copy(self, record: Record, epoch: int) -> Record:
        """Copies the files of a record, and returns the record of an epoch that names the copies."""
        place = pathlib.Path(str(records.generation_path(self.path, record.generation)))
        name, dense = records.name_of(records.EPOCH, epoch), records.dense_name(epoch)
        shutil.copytree(place / record.dense, place / dense)
        shutil.copytree(place / record.name, place / name)
        files = [{**entry, "file": f"{name}/{os.path.basename(entry['file'])}"} for entry in record.files]
        return dataclasses.replace(record, epoch=epoch, files=files, dense=dense)


@contextlib.contextmanager
def requests(port: int, bodies: pathlib.Path, out: pathlib.Path) -> Iterator[subprocess.Popen]:
    """Sends requests until the end of the block; then `out` has the times, see `open_loop.py`."""
    path = f"/v1/models/{trained.NAME}:predict"
    command = [sys.executable, sides.HERE / "open_loop.py", port, path, bodies, RATE, out]
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE)
    try:
        yield process
        process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.wait()


def measure(epochs: int = 100) -> dict[str, Any]:
    """Returns the keys of the part `switches`; `epochs` is how many records arrive in all."""
    distributed.init()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        place = pathlib.Path(directory)
        spool, target = Spool(place, epochs), place / "publication"
        bodies, out = place / "bodies.json", place / "requests.npy"
        draw = np.random.default_rng(0)
        chosen = [draw.choice(len(spool.instances), EXAMPLES, replace=False) for _ in range(BODIES)]
        bodies.write_text(json.dumps([{"instances": [spool.instances[each] for each in some]} for some in chosen]))
        stack.enter_context(DeliveryProcess(spool.path, str(target), RedisFiles(), place / "publish.log"))
        sides.wait_until((target / records.PUBLICATION).exists, "the first publication", TIMEOUT_SECONDS)
        server = stack.enter_context(serving(target, place / "score.log"))
        client = stack.enter_context(contextlib.closing(Client(server.port)))
        phases, memory = [], {"steady": [], "switches": []}
        with requests(server.port, bodies, out):
            time.sleep(WARM_SECONDS)
            for _ in range(ROUNDS):
                for phase, seconds in (("steady", STEADY_SECONDS), ("switches", epochs / ROUNDS * ARRIVAL_SECONDS)):
                    began = time.monotonic()
                    for number in itertools.count():
                        if time.monotonic() - began >= seconds:
                            break
                        if phase == "switches":
                            spool.release()
                        memory[phase].append(server.resident_mb())
                        time.sleep(max(began + (number + 1) * ARRIVAL_SECONDS - time.monotonic(), 0))
                    sides.wait_until(
                        lambda: client.ask("/healthz")[1]["epoch"] == spool.released, "the last record", TIMEOUT_SECONDS
                    )
                    phases.append((phase, began, time.monotonic()))
        found = np.load(out)
        switched = (place / "score.log").read_text().count("global step") - 1
    return _summary(found, phases) | {
        "memory_during_switches_over_before": round(max(memory["switches"]) / memory["steady"][0], 3),
        "switches": switched,
    }


def _summary(found: np.ndarray, phases: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Returns the ratio of the percentiles of the phases, as the median over the rounds."""
    due, seconds, status = found.T
    figures = []
    for phase, begin, end in phases:
        some = seconds[(due >= begin) & (due < end)] * 1000
        if len(some) < (end - begin) * RATE / 2:  # What was due at the end of a run was never sent.
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
