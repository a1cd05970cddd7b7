"""The steps after which all ranks meet, by a clock that only the test moves. The ranks are threads."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from ctr_trainer.ranks.meetings import NOTHING, Meetings, StopRequest, StopSignals, Terminated, Told
from tests.metrics.ranks import Ranks

# Gets SIGTERM after each change of a handler while it leaves the block that handles signals.
_LEAVES = """
import os, signal
from ctr_trainer.ranks.meetings import StopSignals

def and_get_a_signal(number, handler, change=signal.signal):
    change(number, handler)
    os.kill(os.getpid(), signal.SIGTERM)

signals = StopSignals(lambda *_: None, lambda: False, is_ignored_after=True)
signals.is_saved = True
with signals.handled():
    signal.signal = and_get_a_signal
print("left")
"""


def _meet(seconds_of_step, steps, most_steps=None, over_after=None, signals=()):
    """Returns, for each of three ranks, (steps of the meetings, what the ranks were told that asked for something).

    Args:
      seconds_of_step: f(step) -> how long it takes on rank 0; the clocks of the others stand still.
      over_after: seconds after which the period of rank 0 is over; None for never.
      signals: (rank, step from which on a signal asks it to stop).
    """

    def work(rank, all_sum, all_gather):
        now, met, told = 0.0, [], []

        def add_up(own):
            met.append(step)
            return all_sum(own, "meeting")

        meetings = Meetings(rank, 3, add_up, most_steps, clock=lambda: now)
        for step in range(1, steps + 1):
            now += seconds_of_step(step) if rank == 0 else 0.0
            signal = 15 if any(rank == of and step >= since for of, since in signals) else 0
            found = meetings.after_step(step, signal, rank == 0 and over_after is not None and now >= over_after)
            if found.signal or found.is_over:
                told.append((step, found))
        return met, told

    return Ranks(3).run(work)


def test_the_ranks_meet_about_once_a_second_and_first_after_few_steps():
    met, told = _meet(lambda step: 0.1, steps=60)[0]
    assert met == [1, 2, 4, 8, 16, 26, 36, 46, 56]
    assert told == []


def test_steps_longer_than_a_second_are_all_met_after():
    assert _meet(lambda step: 2.0, steps=4)[2][0] == [1, 2, 3, 4]


def test_a_stream_that_falls_quiet_is_met_after_a_few_steps():
    met, _ = _meet(lambda step: 0.01 if step <= 20 else 2.0, steps=26, most_steps=2)[1]
    assert max(later - earlier for earlier, later in zip(met, met[1:], strict=False)) == 2


def test_all_ranks_act_after_the_same_step_by_the_clock_of_rank_0():
    of_ranks = _meet(lambda step: 0.1, steps=30, over_after=1.7)
    assert [[step for step, found in told if found.is_over] for _, told in of_ranks] == [[26]] * 3


def test_a_signal_of_one_rank_is_known_to_all_after_the_same_step():
    of_ranks = _meet(lambda step: 0.1, steps=20, signals=[(2, 9)])
    assert [told[0] for _, told in of_ranks] == [(16, Told((0, 0, 15), False))] * 3


def test_a_single_rank_meets_itself_after_each_step():
    meetings = Meetings(0, 1, None)
    assert meetings.after_step(1, 0, False) == Told((0,), False)
    assert meetings.after_step(2, 2, True).signal == 2
    assert NOTHING.signal == 0


@pytest.mark.parametrize("signals", [[15], [15, 2]])
def test_the_first_signal_counts(signals):
    request = StopRequest()
    for number in signals:
        request.ask(number)
    assert request.asked == 15


def test_a_signal_ends_no_process_that_has_reported_its_end():
    """horovodrun sends SIGTERM to the other ranks when the first one ends, at any moment of their own ends."""
    ended = subprocess.run([sys.executable, "-c", _LEAVES], stdout=subprocess.PIPE, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "left\n")


@pytest.mark.parametrize("number, grace_secs", [(signal.SIGINT, 600.0), (signal.SIGTERM, 0.0)])
def test_no_thread_ends_a_process_that_continues_after_a_stop(monkeypatch, number, grace_secs):
    """As a notebook does after Ctrl-C, whose kernel must live on."""
    exits, has_begun = [], threading.Event()
    monkeypatch.setattr(os, "_exit", exits.append)
    signals = StopSignals(lambda *_: has_begun.set(), has_begun.set, is_ignored_after=False)
    signals.hand_to(StopRequest(), grace_secs)
    with contextlib.suppress(Terminated), signals.handled():
        os.kill(os.getpid(), number)
    assert has_begun.wait(60)
    threads = [each for each in threading.enumerate() if each.name in ("grace", "end")]
    for each in threads:
        each.join(20)
    assert not any(each.is_alive() for each in threads)
    assert exits == []
