"""Whether a scoring server ever gives a wrong answer: faults under 100 requests per second. The last line is JSON.

An answer is wrong if its status is 200 and the model that its headers name predicts something else. Two checkpoints of
a small model are published in turn, to a real cluster of three primaries with a replica each and to a directory, while
`python -m ctr_trainer score` serves them. Each fault comes at a random moment; then the other checkpoint is published.

| key | what |
|---|---|
| `wrong_answers` | wrong answers of the parts `cluster` and `directory` |
| `answers`, `refused`, `no_answer` | answers of status 200, answers of another status, requests without an answer |
| `requests_per_sec` | requests sent per second of these parts |
| `losses`, `losses_noticed` | faults that lost rows, and how many of them /healthz showed by 503 |
| `requests_lost_at_sigterm` | part `sigterm`: requests without an answer of status 200 up to the server's end |
| `sigterm_rounds`, `sigterm_requests` | part `sigterm`: servers ended under load, and requests sent |
| `peak_mb_per_request`, `mb_of_attack` | part `memory`: MB added to the peak of memory, the most and by attack |
| `rounds`, `left_out` | rounds of each fault; the parts that did not run, whose keys are null |

Examples: python benchmarks/serving_faults.py                                  # all parts, about ten minutes
          python benchmarks/serving_faults.py --parts=cluster --rounds=20
          python benchmarks/serving_faults.py --parts=directory --rounds=1 --rate=20
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid

import serving_limits
from serving_load import TIMEOUT_SECONDS, Campaign, run_faults

from ctr_trainer.ranks import distributed
from ctr_trainer.serving.publication import records
from ctr_trainer.serving.publication.cluster_target import ClusterTarget
from ctr_trainer.serving.publication.delivery import Delivery, DeliveryProcess
from ctr_trainer.serving.publication.records import Publication
from ctr_trainer.settings.publish_config import RedisFiles
from ctr_trainer.system.messages.errors import UserError
from tests import redis_cluster
from tests.scoring import trained

PARTS = ("cluster", "directory", "sigterm", "memory")
LOSSES = ("state lost", "node lost", "node flushed", "all flushed")
CLUSTER = (*LOSSES, "flushed while put", "primary killed", "delivery killed", "full", "diverged")
DIRECTORY = ("next epoch", "damaged epoch", "diverged epoch", "next generation")
MORE_ROWS, STEP_SECONDS = 30_000, 1.5
_STATE = "{ctr}state"


class ClusterFaults:
    """Breaks a cluster and publishes to it."""

    def __init__(self, cluster: redis_cluster.LocalCluster, place: pathlib.Path, model: trained.Trained, seed: int):
        self._cluster, self._place, self._draw = cluster, place, random.Random(seed)
        self._numbers = itertools.cycle((0, 1))
        self._spools = [place / f"spool-{number}" for number in (0, 1)]
        for number, spool in enumerate(self._spools):
            of = model.estimator, model.checkpoints[number]
            trained.publish(spool, *of, more_rows=MORE_ROWS)
        self._diverged = place / "diverged"
        trained.publish(self._diverged, *of, more_rows=MORE_ROWS)
        trained.publish(self._diverged, *of, epoch=1, more_rows=MORE_ROWS, variables=trained.not_finite)
        self.campaign: Campaign | None = None

    def publish(self, spool: pathlib.Path | None = None, number: int = 1) -> int:
        """Publishes a spool, by default of the next checkpoint, as a new generation. Returns its number."""
        if spool is None:
            number = next(self._numbers)
            spool = self._spools[number]
        self._renew(spool)
        with contextlib.closing(ClusterTarget(self._cluster.url, RedisFiles())) as target:
            delivery = Delivery(spool, target)
            while delivery.step() is not None:
                pass
            generation = target._state.record.generation
        self._note(generation, number)
        return generation

    def run(self, fault: str, waits: bool) -> None:
        """Causes a fault of `CLUSTER` at a random moment, then publishes; if `waits`, after the loss was noticed."""
        time.sleep(self._draw.random() * STEP_SECONDS)
        cluster, campaign = self._cluster, self.campaign
        with_state = cluster.primary_of(_STATE)
        other = self._draw.choice([port for port in cluster.primaries() if port != with_state])
        if fault == "state lost":
            cluster.lose(with_state)
        elif fault == "node lost":
            cluster.lose(other)
        elif fault in ("node flushed", "all flushed"):
            for port in [self._draw.choice([with_state, other])] if fault == "node flushed" else cluster.primaries():
                cluster.ask(port, "FLUSHALL")
        elif fault == "primary killed":
            cluster.kill(self._draw.choice([with_state, other]))
        elif fault == "flushed while put":
            port = self._draw.choice([with_state, other])
            threading.Timer(self._draw.random(), cluster.ask, (port, "FLUSHALL")).start()
        elif fault == "delivery killed":
            self._kill_a_delivery()
        elif fault == "full":
            self._fill()
        elif fault == "diverged":
            spool = self._place / uuid.uuid4().hex  # A delivery removes what it delivered.
            shutil.copytree(self._diverged, spool)
            generation = self.publish(spool)
            campaign.await_all(
                lambda status, now: f"generation {generation} is not served" in now.get("problem", ""), "it is refused"
            )
        if fault in LOSSES:
            campaign.found["losses"] += waits
            if waits:
                noticed = campaign.await_all(lambda status, now: status == 503, "the loss is noticed")
                campaign.found["losses_noticed"] += noticed
            else:
                time.sleep(self._draw.random() * STEP_SECONDS)
        self._recover()
        cluster.revive()
        campaign.judge(fault)

    def _recover(self) -> None:
        """Publishes until a publication is served, as the fault may have damaged the last one."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                if self.campaign.await_served(self.publish(), 0, TIMEOUT_SECONDS / 6):
                    return
            except UserError as error:
                print(f"published again: {error}", flush=True)
                time.sleep(0.5)
        sys.exit(f"nothing is served {TIMEOUT_SECONDS:g} s after a fault")

    def _kill_a_delivery(self) -> None:
        number = next(self._numbers)
        spool = self._spools[number]
        self._renew(spool)
        before = self._generation()
        with DeliveryProcess(spool, self._cluster.url, RedisFiles(), self._place / "delivery.log") as process:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self._generation() == before and time.monotonic() < deadline:
                time.sleep(0.005)
            self._note(self._generation(), number)  # It may be served if the kill comes late.
            time.sleep(self._draw.random() * 0.5)
            os.kill(process.pid, signal.SIGKILL)

    def _fill(self) -> None:
        for port in self._cluster.ports:
            used = re.search(rb"used_memory:(\d+)", self._cluster.ask(port, "INFO", "memory"))[1]
            self._cluster.ask(port, "CONFIG", "SET", "maxmemory", int(used))
        with contextlib.suppress(UserError):
            self.publish()
        self._cluster.ask_all("CONFIG", "SET", "maxmemory", 0)

    def _generation(self) -> int:
        return int(self._cluster.ask(self._cluster.primary_of(_STATE), "GET", "{ctr}generation") or 0)

    def _renew(self, spool: pathlib.Path) -> None:
        """Gives a spool the identity of another training."""
        records.write_publication(spool, Publication(trained.NAME, 1, uuid.uuid4().hex))

    def _note(self, generation: int, number: int) -> None:
        if self.campaign is not None:
            self.campaign.number_of[generation, 0] = number
        else:
            self.first = generation, number


class DirectoryFaults:
    """Publishes valid and invalid records to a directory."""

    first = 1, 0  # A generation, and the number of its checkpoint.

    def __init__(self, url: pathlib.Path, model: trained.Trained, seed: int):
        self._url, self._model, self._draw = url, model, random.Random(seed)
        self._generation, self._epoch, self._number = 1, 0, 0
        self.campaign: Campaign | None = None
        self._write()

    def run(self, fault: str, waits: bool) -> None:
        """Publishes at a random moment; see `DIRECTORY`."""
        time.sleep(self._draw.random() * STEP_SECONDS)
        self._number = 1 - self._number
        if fault == "next generation":
            self._generation, self._epoch = self._generation + 1, 0
            self._write()
        elif fault == "damaged epoch":
            self._epoch += 1
            record = self._write()
            for entry in record.files:
                file = records.generation_path(self._url, self._generation) / entry["file"]
                file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
            time.sleep(self._draw.random() * STEP_SECONDS)
            self._generation, self._epoch, self._number = self._generation + 1, 0, 1 - self._number
            self._write()
        else:
            if fault == "diverged epoch":
                self._epoch += 1
                self._write(variables=trained.not_finite)
                self.campaign.await_all(lambda status, now: "problem" in now, "it is refused")
            self._epoch += 1
            self._write()
        if not self.campaign.await_served(self._generation, self._epoch):
            sys.exit(f"nothing is served {TIMEOUT_SECONDS:g} s after {fault!r}")
        self.campaign.judge(fault)

    def _write(self, **settings) -> records.Record:
        if self.campaign is not None and not settings:
            self.campaign.number_of[self._generation, self._epoch] = self._number
        of = self._model.estimator, self._model.checkpoints[self._number], self._generation, self._epoch
        return trained.publish(self._url, *of, holder=f"{self._generation}", **settings)


def limits(part: str, model: trained.Trained, url: pathlib.Path, args: argparse.Namespace) -> dict:
    """Returns the keys of the part `sigterm` or `memory`."""
    trained.publish(url, model.estimator, model.checkpoints[0])
    if part == "sigterm":
        lost, sent = serving_limits.measure_sigterm(url, model.instances[:10], rounds=args.rounds, seed=args.seed)
        return {"requests_lost_at_sigterm": lost, "sigterm_rounds": args.rounds, "sigterm_requests": sent}
    attacks = serving_limits.measure_memory(url, model.instances)
    return {"peak_mb_per_request": max(attacks.values()), "mb_of_attack": attacks}


def measure(args: argparse.Namespace) -> dict:
    """Returns the JSON of the last line."""
    found, rounds, left_out = collections.Counter(), {}, []
    result = dict.fromkeys(("wrong_answers", "requests_lost_at_sigterm", "peak_mb_per_request"))
    with tempfile.TemporaryDirectory(prefix="ctr_trainer-") as place, contextlib.ExitStack() as stack:
        place = pathlib.Path(place)
        distributed.init()
        model = trained.train(place / "model")
        for part in PARTS:
            why = "" if part in args.parts else "not asked for"
            if not why and part == "cluster" and redis_cluster.server_binary() is None:
                why = "there is no Redis or Valkey"
            if why:
                left_out.append(part)
                print(f"left out: {part} ({why})", flush=True)
                continue
            print(f"part {part}", flush=True)
            if part in ("sigterm", "memory"):
                result |= limits(part, model, place / part, args)
                continue
            if part == "cluster":
                (place / "cluster").mkdir()
                cluster = stack.enter_context(redis_cluster.running(place / "cluster"))
                faults = ClusterFaults(cluster, place / "cluster", model, args.seed)
                faults.publish()
                url, names = cluster.url, args.faults or CLUSTER
            else:
                faults = DirectoryFaults(place / "publication", model, args.seed)
                url, names = str(place / "publication"), DIRECTORY
            campaign = run_faults(faults, url, names, model, place, args.rounds, args.rate)
            found.update(campaign.found)
            rounds |= campaign.rounds
    counts = ("wrong_answers", "answers", "refused", "no_answer", "losses", "losses_noticed")
    if rounds:
        result |= {name: found[name] for name in counts}
        result["requests_per_sec"] = round(found["sent"] / found["seconds"], 1)
    return {**result, "rounds": rounds, "left_out": left_out}


def _names(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=_names, default=list(PARTS), help=f"some of {','.join(PARTS)}; default all")
    parser.add_argument("--faults", type=_names, help=f"cluster faults, some of {','.join(CLUSTER)}; default all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each fault; default 5")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second; default 100")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments; default 0")
    args = parser.parse_args()
    unknown = sorted({*args.parts} - {*PARTS} | {*(args.faults or ())} - {*CLUSTER})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; parts are {', '.join(PARTS)}, faults {', '.join(CLUSTER)}")
    print(json.dumps(measure(args)), flush=True)


if __name__ == "__main__":
    main()
