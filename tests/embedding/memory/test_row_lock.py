"""A row lock excludes the other threads of its process, and is given back."""

import os
import threading

import pytest

from ctr_trainer.embedding.memory.growable_array import RowLock


@pytest.fixture(params=["threads", "processes"])
def lock(request):
    """Of one process, or of all that have a file open."""
    if request.param == "threads":
        yield RowLock()
        return
    file = os.memfd_create("lock")
    yield RowLock(file)
    os.close(file)


def test_a_thread_waits_for_another_that_holds_the_lock(lock):
    said = []

    def wait():
        with lock.shared():
            said.append("taken")

    waiting = threading.Thread(target=wait)
    with lock.alone():
        waiting.start()
        waiting.join(0.1)
        said.append("given back")
    waiting.join(60)
    assert said == ["given back", "taken"]


def test_an_error_within_gives_the_lock_back(lock):
    with pytest.raises(KeyError), lock.alone():
        raise KeyError
    with lock.shared():
        pass
