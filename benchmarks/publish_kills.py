"""Kills what publishes and serves at random moments: nothing may be lost, doubled or mixed. The last line is JSON.

    python benchmarks/publish_kills.py --runs=100

A writer makes epochs of random rows and removed keys. A process of its own delivers them to a real cluster of three
primaries with a replica each, and another to a directory; readers of both read random keys all the time. In each run
the process of a delivery, a primary of the cluster or a reader is killed, and all goes on.

    lost       rows that are older than the record that is served, or not there; of a reader that keeps hot rows,
               older than the record before
    doubled    records that are served again after a later one
    mixed      rows or a tower that are more than one epoch ahead of the record, or that no epoch has
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from ctr_trainer.messages import log_lines  # noqa: E402
from ctr_trainer.messages.errors import UserError  # noqa: E402
from ctr_trainer.publication.delivered import read_delivered  # noqa: E402
from ctr_trainer.publication.delivery_process import DeliveryProcess  # noqa: E402
from ctr_trainer.publication.open_reader import open_reader  # noqa: E402
from ctr_trainer.publication.reader import RowsAhead  # noqa: E402
from ctr_trainer.settings.redis_files import RedisFiles  # noqa: E402
from tests import redis_cluster  # noqa: E402
from tests.publication.published import Published, tower_of  # noqa: E402

KEYS, CHANGED, REMOVED, READ = 3000, 300, 20, 200
WRITE_SECONDS, READ_SECONDS, PAUSE_SECONDS, TIMEOUT_SECONDS = 0.1, 0.01, 1.0, 120
MOST_WAITING = 2


class Publication:
    """A writer, the delivery of what it writes, and a reader of where it arrives.

    Attributes:
      found: Counter of `lost`, `doubled` and `mixed`; and of `reads`, `records`, `bases` after the first, `errors`.
    """

    def __init__(self, directory, to, seed):
        directory.mkdir()
        self._to, self._random = to, random.Random(seed)
        self._spool, self._log = directory / "spool", directory / "delivery.log"
        self.found, self._lock, self._ended = collections.Counter(), threading.Lock(), threading.Event()
        self._states = {}  # By holder and epoch: the rows, and the text of the tower.
        self._holder, self._generation = None, 0
        self._begin()
        self._process, self._reader, self._last = self._start(), None, None
        self._threads = [threading.Thread(target=self._loop, args=each) for each in (
            (self._write, WRITE_SECONDS), (self._keep, WRITE_SECONDS), (self._read, READ_SECONDS))]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def close(self):
        self._ended.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
        self._process.stop()
        self._leave()

    def kill_delivery(self):
        os.kill(self._process.pid, signal.SIGKILL)

    def kill_reader(self):
        """Has the reader be opened anew: it has nothing but its memory."""
        with self._lock:
            self._leave()

    def epoch(self):
        """-> number of the epoch that was written last, counted over all generations."""
        return len(self._states)

    def await_after(self, epoch):
        """Waits until a reader serves a record that was written later than the first `epoch` ones."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.served < epoch:
            if time.monotonic() > deadline:
                sys.exit(f"nothing new is served at {self._to}: {read_delivered(self._spool)}, see {self._log}")
            time.sleep(0.01)

    def check_all(self):
        """Has the writer stop, and compares every row when all is delivered."""
        self._ended.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
        deadline, wanted = time.monotonic() + TIMEOUT_SECONDS, self._published.record.epoch
        while (read_delivered(self._spool).holder, read_delivered(self._spool).epoch) != (self._holder, wanted):
            self._keep()
            if time.monotonic() > deadline:
                sys.exit(f"the last epoch is not delivered to {self._to}: {read_delivered(self._spool)}")
            time.sleep(0.01)
        self._leave()
        with contextlib.closing(open_reader(self._to, cache_rows=0)) as reader:
            self._compare(reader, np.arange(1, KEYS + 1), exactly=True)

    def _loop(self, work, seconds):
        while not self._ended.wait(seconds):
            work()

    def _begin(self):
        self._generation += 1
        self._holder = f"holder {self._generation}"
        rows = range(1, KEYS // 2)
        self._published = Published(self._spool, generation=self._generation, holder=self._holder, rows=rows)
        self._note()

    def _note(self):
        record, number = self._published.record, len(self._states)
        rows = np.full(KEYS + 1, -1, np.int64)
        for key, epoch in self._published.state.items():
            rows[key] = epoch
        tower = f"tower {self._generation} {record.epoch}"
        self._states[self._holder, record.epoch] = number, rows, tower

    def _write(self):
        delivered = read_delivered(self._spool)
        if delivered and delivered.holder == self._holder and delivered.needs_base:
            self.found["bases"] += 1
            self._begin()
            return
        done = delivered.epoch if delivered and delivered.holder == self._holder else -1
        if self._published.record.epoch - done >= MOST_WAITING:
            return
        keys = self._random.sample(range(1, KEYS + 1), CHANGED + REMOVED)
        changed, removed = keys[:CHANGED], [key for key in keys[CHANGED:] if key in self._published.state]
        # What it has to be is known before a reader can see it.
        number = self._published.record.epoch + 1
        state = {**self._published.state, **dict.fromkeys(changed, number)}
        rows = np.full(KEYS + 1, -1, np.int64)
        for key, epoch in state.items():
            rows[key] = epoch
        rows[removed] = -1
        self._states[self._holder, number] = len(self._states), rows, f"tower {self._generation} {number}"
        self._published.epoch(changed, removed)

    def _start(self):
        return DeliveryProcess(self._spool, self._to, RedisFiles(), self._log)

    def _keep(self):
        if self._process.ended() is not None:
            self._process.stop()
            self._process = self._start()

    def _leave(self):
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self):
        with self._lock:
            try:
                if self._reader is None:
                    self._keeps_rows = self._random.random() < 0.5
                    self._reader = open_reader(self._to, cache_rows=2 * KEYS * self._keeps_rows, cache_secs=0.5)
                if self._reader.refresh() is not None:
                    self._reader.advance()
                keys = np.array(self._random.sample(range(1, KEYS + 1), READ))
                self._compare(self._reader, keys)
            except RowsAhead:
                self.found["ahead"] += 1
            except UserError:  # As long as a primary is lost.
                self.found["errors"] += 1
                time.sleep(0.05)

    served = -1

    def _compare(self, reader, keys, exactly=False):
        record = reader.record
        weights = reader.read("dim3", keys)
        # A target has its own numbers of generations; the tower says which one of the writer it is.
        tower = tower_of(reader)
        holder = f"holder {tower.split()[1]}"
        number, before, wanted = self._states[holder, record.epoch]
        after = self._states.get((holder, record.epoch + 1), (0, before, ""))[1]
        there = weights.any(axis=1)
        epochs = np.where(there, weights[:, 1].astype(np.int64), -1)
        right = epochs == before[keys]
        if not exactly:
            right |= epochs == after[keys]
        if not exactly and self._keeps_rows:
            right |= epochs == self._states.get((holder, record.epoch - 1), (0, before, ""))[1][keys]
        foreign = there & ((weights[:, 0] != keys % 1000) | (weights[:, 2] != -(keys % 7)))
        self.found["lost"] += int((~right & (epochs < before[keys])).sum())
        self.found["mixed"] += int((~right & (epochs > before[keys])).sum() + foreign.sum() + (tower != wanted))
        if self._last is not None and number < self._last:
            self.found["doubled"] += 1
        self.found["records"] += number != self._last
        self.found["reads"] += 1
        self._last = self.served = number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    log_lines.install()
    print(json.dumps(kill(flags.runs, flags.seed)), flush=True)


def kill(runs, seed):
    """-> dict of what was found."""
    draw, kinds, found = random.Random(seed), collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory(prefix="ctr_trainer-") as place, contextlib.ExitStack() as stack:
        place = pathlib.Path(place)
        cluster = stack.enter_context(redis_cluster.running(place))
        by_name = {
            "cluster": stack.enter_context(contextlib.closing(Publication(place / "a", cluster.url, seed))),
            "directory": stack.enter_context(contextlib.closing(Publication(place / "b", str(place / "to"), seed))),
        }
        for each in by_name.values():
            each.await_after(1)
        for run in range(runs):
            name = draw.choice(["cluster", "cluster", "directory"])
            what = draw.choice(["delivery", "primary", "reader"] if name == "cluster" else ["delivery", "reader"])
            publication = by_name[name]
            time.sleep(draw.random() * PAUSE_SECONDS)
            if what == "primary":
                cluster.kill(draw.choice(cluster.primaries()))
            elif what == "delivery":
                publication.kill_delivery()
            else:
                publication.kill_reader()
            kinds[f"{name} {what}"] += 1
            publication.await_after(publication.epoch() + 1)
            cluster.revive()
            print(f"run {run + 1}: killed the {what} of the {name}: {dict(publication.found)}", flush=True)
        for each in by_name.values():
            each.check_all()
            found.update(each.found)
    counts = {name: found[name] for name in ("lost", "doubled", "mixed")}
    more = {name: found[name] for name in ("reads", "records", "bases", "ahead", "errors")}
    return {"kill_runs": runs, **counts, **more, "kinds": dict(kinds)}


if __name__ == "__main__":
    main()
