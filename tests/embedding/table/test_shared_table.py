"""Tables in shared memory, trained by real processes."""

import gc
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.system.messages.errors import UserError
from tests.embedding.table import shared_worker as worker
from tests.rows import pulled, read

ROOT = pathlib.Path(__file__).parents[3]


class Worker:
    """`shared_worker.py` in a process, at work from `go` on."""

    def __init__(self, address, what, rank=1):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.embedding.table.shared_worker", address, what, str(rank)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"

    def go(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def says(self):
        return self._process.stdout.readline()

    def kill(self):
        self._process.kill()
        self._process.communicate(timeout=60)

    def ends_well(self):
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


def test_no_step_is_lost_when_two_workers_step_the_same_rows():
    memory, table = worker.open_table()
    other = Worker(memory.address, "hot")
    initial = table.initial_rows(worker.HOT)
    other.go()
    for _ in range(worker.STEPS):
        worker.step(table, worker.HOT)
    other.ends_well()
    expected = initial.copy()
    for _ in range(2 * worker.STEPS):
        expected -= np.float32(1)  # in float32, as the table does it
    np.testing.assert_array_equal(read(table, worker.HOT), expected)


def test_two_workers_create_rows_at_the_same_time_and_each_row_once():
    memory, table = worker.open_table()
    other = Worker(memory.address, "fresh")
    other.go()
    for number in range(worker.STEPS):
        worker.step(table, worker.fresh_keys(0, number))
    other.ends_well()
    mine, others = (np.concatenate([worker.fresh_keys(r, n) for n in range(worker.STEPS)]) for r in (0, 1))
    both = np.intersect1d(mine, others)
    assert len(table) == len(mine) + len(others) - len(both)
    assert len(np.unique(table.keys)) == len(table)
    single = np.setdiff1d(np.union1d(mine, others), both)
    np.testing.assert_array_equal(read(table, single), table.initial_rows(single) - np.float32(1))
    np.testing.assert_array_equal(read(table, both), table.initial_rows(both) - np.float32(1) - np.float32(1))


def test_a_worker_that_is_killed_while_it_holds_the_lock_frees_it():
    memory, table = worker.open_table()
    other = Worker(memory.address, "hold")
    other.go()
    assert other.says() == "holding\n"
    other.kill()
    worker.step(table, worker.HOT)
    assert len(table) == len(worker.HOT)


def test_an_incremental_snapshot_has_what_another_worker_changed(tmp_path):
    memory = SharedMemory()
    store = LocalStore(memory)
    store.create_table(worker.CONFIG)
    table = store.tables["dim2"]
    worker.step(table, worker.HOT)
    full = store.save(tmp_path, 1)
    other = Worker(memory.address, "fresh")
    other.go()
    other.ends_well()
    delta = store.save(tmp_path, 2, since=full[-1]["snapshot"])
    fresh = np.concatenate([worker.fresh_keys(1, number) for number in range(worker.STEPS)])
    assert sum(file["rows"] for file in delta) == len(fresh)
    restored = LocalStore()
    restored.create_table(worker.CONFIG)
    restored.restore(tmp_path, full + delta)
    keys = np.concatenate([worker.HOT, fresh])
    np.testing.assert_array_equal(pulled(restored, "dim2", keys), read(table, keys))


def _open_memory():
    """Returns the number of open shared-memory files of this process; other files may be opened and closed."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(link) and os.readlink(link).startswith("/memfd:ctr_trainer") for link in links)


def test_removed_memory_is_given_back_at_once_and_closed_files_are_closed():
    gc.collect()  # What earlier tests have left would else be counted before, and be gone after.
    open_before = _open_memory()
    memory = SharedMemory()
    store = LocalStore(memory)
    store.create_table(worker.CONFIG)
    keys = np.arange(1, 200_001)
    store.sync("dim2", keys, np.ones((len(keys), 2), np.float32), "w", 1)
    files = [os.dup(file) for file in memory._files]  # So that they can be looked at when they are closed.
    taken = sum(os.fstat(file).st_blocks * 512 for file in files)
    assert taken > 200_000 * 16
    memory.remove()
    assert sum(os.fstat(file).st_blocks * 512 for file in files) == 0
    memory.close()
    for file in files:
        os.close(file)
    del store, memory
    gc.collect()
    assert _open_memory() == open_before


def test_memory_that_its_owner_closes_is_as_it_was_for_those_who_opened_it():
    own = SharedMemory()
    array = own.array("rows", np.float32, (2,), most_rows=1000)
    array.reserve(1000)
    array.array[:] = 7
    other = SharedMemory(own.address).array("rows", np.float32, (2,), most_rows=1000)
    own.close()
    assert (other.array[:1000] == 7).all()


def test_an_owner_that_is_not_there_is_named():
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    with pytest.raises(UserError, match=f"process id {gone.stdout.strip()}.*embedding_service=auto"):
        worker.open_table(f"{gone.stdout.strip()}/abc")
