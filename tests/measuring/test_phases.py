import time

import pytest

from ctr_trainer.measuring.phases import Phases


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands where the test puts it."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    return Clock


def test_a_phase_within_another_pauses_it_and_all_add_up(clock):
    phases = Phases()
    clock.now = 103.0
    with phases.within("session"):
        clock.now = 104.0
        with phases.within("read"):
            clock.now = 106.0
        clock.now = 110.0
    clock.now = 111.0
    phases.enter("hooks")
    spent = {phase: seconds for phase, seconds in phases.seconds.items() if seconds}
    assert spent == {"start": 3.0 + 1.0, "session": 1.0 + 4.0, "read": 2.0}
    assert (phases.phase, phases.began) == ("hooks", 111.0)


def test_a_phase_ends_with_an_error_too():
    phases = Phases()
    with pytest.raises(KeyError), phases.within("read"):
        raise KeyError
    assert phases.phase == "start"


def test_spans_and_followers_see_each_change(clock):
    phases, seen = Phases(), []
    phases.follow = lambda phase, step: seen.append((phase, step))
    phases.spans, phases.step = [], 7
    clock.now = 101.0
    call = phases.timed("checkpoint", lambda a, b: a + b)
    assert call(1, 2) == 3
    assert seen == [("checkpoint", 7), ("start", 7)]
    assert phases.spans == [("start", 100.0, 101.0), ("checkpoint", 101.0, 101.0)]
