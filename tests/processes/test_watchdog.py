import logging
import os
import subprocess
import sys

import pytest

from ctr_trainer.system.messages.errors import Lost, UserError
from ctr_trainer.system.processes import waiting as watchdogs
from ctr_trainer.system.processes.waiting import Watchdog


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(watchdogs.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def dog(monkeypatch):
    """One that looks only when it is told to."""
    return Watchdog("rank 0", timeout=100.0, warning=10.0, period=86400.0)


def _lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_long_wait_is_named_with_who_is_missing_and_again_when_it_has_doubled(dog, clock, caplog):
    dog.explain = lambda: "rank 1 is missing"
    with dog.waiting("step 8"):
        clock.now = 5.0
        with dog.waiting("a barrier"):
            said = []
            for now in (9.0, 11.0, 15.0, 21.0, 23.0):
                clock.now = now
                dog._look()
                said.append(len(caplog.records))
    assert said == [0, 1, 1, 1, 2]
    assert _lines(caplog)[0] == "rank 0 has waited 11 s for step 8 > a barrier (rank 1 is missing)"
    clock.now = 1000.0
    dog._look()
    assert len(caplog.records) == 2  # nothing is waited for any more


def test_a_wait_that_is_seen_to_go_on_is_not_named(dog, clock, caplog):
    with dog.waiting("an evaluation"):
        for now in range(0, 50, 5):
            clock.now = float(now)
            dog.progress()
            dog._look()
    assert not caplog.records


def test_a_hopeless_wait_ends_at_once_and_is_checked_ever_less_often(dog, clock, monkeypatch, caplog):
    ended, asked, errors = [], [], [None]
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)

    def hopeless():
        asked.append(clock.now)
        return errors[0]

    dog.hopeless = hopeless
    for wait in range(2):
        with dog.waiting(f"step {wait}"):
            began = clock.now
            for seconds in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 8.0, 20.0, 60.0, 90.0):
                clock.now = began + seconds
                dog._look()
    assert asked[:7] == [1.0, 2.0, 4.0, 8.0, 20.0, 60.0, 90.0]
    assert asked[7:9] == [91.0, 92.0]
    assert not ended
    for error in (Lost("rank 1 has given no sign of life"), UserError("rank 1 has no batch for step 3")):
        errors[0] = error
        with dog.waiting("step 3"):
            for _ in range(2):
                clock.now += 0.5
                dog._look()
        assert _lines(caplog)[-1] == str(error)
    assert ended == [75, 1]


def test_the_end_is_named_too_and_an_explanation_that_fails_does_not_stop_it(dog, clock, caplog, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)

    def explain():
        raise OSError("no such directory")

    dog.explain = explain
    with dog.waiting("step 8"):
        clock.now = 101.0
        dog._look()
    assert ended == [75]
    assert "rank 0 has waited 101 s for step 8, longer than stall_timeout=100" in _lines(caplog)[0]
    assert "which ranks are missing is not known: no such directory" in _lines(caplog)[0]


_WAITING = """
import os, sys, time
from ctr_trainer.ranks.endings.states import RankStates
from ctr_trainer.system.processes.waiting import Watchdog

model_dir, full_pipe = sys.argv[1], len(sys.argv) > 2
dog = Watchdog("rank 0", timeout=3.0, period=0.1, warning=0.2)
dog.explain = RankStates(model_dir, 2, own=0).describe_missing
if full_pipe:
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(2, True)
with dog.waiting("step 8"):
    time.sleep(600)
"""


def _wait_for_rank_1(*arguments):
    """Returns (exit status, stderr) of a process that waits for a rank until its watchdog ends it."""
    command = [sys.executable, "-c", _WAITING, *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        status = process.wait(60)  # Nobody reads its stderr meanwhile.
        return status, process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()


def test_a_file_system_that_hangs_does_not_hold_up_the_end(tmp_path):
    (tmp_path / ".ranks").mkdir()
    os.mkfifo(tmp_path / ".ranks" / "1")  # To open it waits for a writer, for ever.
    status, said = _wait_for_rank_1(tmp_path)
    assert status == 75
    warning, end = said.splitlines()
    assert "s for step 8 (which ranks are missing is not known: no answer within 3 s" in warning
    assert "longer than stall_timeout=3" in end
    assert "which ranks are missing is not known: no answer within 3 s, as of a file system" in end


def test_a_log_that_nobody_reads_does_not_hold_up_the_end(tmp_path):
    status, _ = _wait_for_rank_1(tmp_path, "full pipe")
    assert status == 75
