import logging
import os

import pytest

from ctr_trainer import watchdog as watchdogs
from ctr_trainer.watchdog import Watchdog


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(watchdogs.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def dog(monkeypatch):
    """One that looks only when it is told to."""
    monkeypatch.setattr(watchdogs.threading.Thread, "start", lambda thread: None)
    return Watchdog("rank 0", timeout=100.0, warning=10.0)


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
    assert "rank 0 has waited 101 s for step 8, longer than --stall_timeout=100" in _lines(caplog)[0]
    assert "who is missing cannot be said: no such directory" in _lines(caplog)[0]
