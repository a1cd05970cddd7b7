import os
import threading

import pytest

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.waiting import Background


def test_a_task_runs_beside_and_the_next_waits_for_it_and_gets_its_error_once():
    background, release, done = Background("the test"), threading.Event(), []
    background.start(lambda: (release.wait(30), done.append(1)))
    assert done == []
    release.set()
    background.start(lambda: done.append(2))
    background.wait()
    assert done == [1, 2]
    background = Background("the test")
    background.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        background.start(lambda: None)
    background.wait()
    background.start(lambda: 1 / 0)
    background.close()


def test_a_task_that_does_not_end_is_named():
    background, release = Background("the test", timeout=0.01), threading.Event()
    background.start(lambda: release.wait(30))
    with pytest.raises(UserError, match=r"the test did not end within 0.01 s"):
        background.wait()
    release.set()


def test_tasks_run_on_their_cores_and_the_starting_thread_stays():
    before, seen = os.sched_getaffinity(0), []
    one = {min(before)}
    background = Background("the test", cores=one)
    background.start(lambda: seen.append(os.sched_getaffinity(0)))
    background.wait()
    assert seen == [one]
    assert os.sched_getaffinity(0) == before
