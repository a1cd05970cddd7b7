"""What a row lock says of the time that it costs, by a clock that only the test moves."""

import os
import threading
import types

import pytest

from ctr_trainer.embedding.memory import growable_array
from ctr_trainer.embedding.memory.growable_array import LockTimes, RowLock


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands where the test puts it, in seconds."""
    found = types.SimpleNamespace(now=100)
    fake = types.SimpleNamespace(perf_counter_ns=lambda: found.now * 1_000_000_000)
    monkeypatch.setattr(growable_array, "time", fake)
    return found


@pytest.fixture(params=["threads", "processes"])
def lock(request):
    """Of one process, or of all that have a file open."""
    if request.param == "threads":
        yield RowLock()
        return
    file = os.memfd_create("lock")
    yield RowLock(file)
    os.close(file)


def test_what_is_held_is_added_up_over_both_kinds_of_holding_and_over_locks(clock, lock):
    with lock.shared():
        clock.now += 2
    clock.now += 10
    with lock.alone():
        clock.now += 3
    assert lock.times == LockTimes(waited=0, held=5, taken=2)
    assert LockTimes(1, 2, 3) + LockTimes(10, 20, 30) == LockTimes(11, 22, 33)


def test_a_thread_that_waits_for_another_counts_its_wait(clock, lock):
    asked = threading.Event()

    class Threads:
        """The lock of the threads, which says when it is asked for."""

        def __init__(self, lock):
            self._lock = lock

        def acquire(self):
            asked.set()
            self._lock.acquire()

        def release(self):
            self._lock.release()

    def wait():
        with lock.alone():
            pass

    with lock.alone():
        lock._threads = Threads(lock._threads)
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert asked.wait(60)
        clock.now += 4
    waiting.join(60)
    assert lock.times == LockTimes(waited=4, held=4, taken=2)


def test_an_error_within_gives_the_lock_back(lock):
    with pytest.raises(KeyError), lock.alone():
        raise KeyError
    with lock.shared():
        pass
    assert lock.times.taken == 2
