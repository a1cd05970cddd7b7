"""Ranks, here threads, that stop after the same step."""

import functools
import random
import signal
import threading
import time

import pytest

from ctr_trainer.ranks.stopping import Stopping
from ctr_trainer.system.processes.waiting import Watchdog
from tests.metrics.ranks import Ranks

LAST = 400


class Board:
    """Keeps notices as the server of horovodrun does."""

    def __init__(self):
        self.put, self.get = (kept := {}).__setitem__, kept.get


class _Training(threading.Thread):
    """The steps of a rank. Each waits for the other ranks, or none does."""

    def __init__(self, ranks, notices, rank, step_seconds, exchange, last=LAST):
        super().__init__(daemon=True)
        watchdog = Watchdog(f"rank {rank}", timeout=60.0)
        all_sum, _ = ranks.collectives(rank)
        told = functools.partial(all_sum, name="stopping")
        self.stopping = Stopping(rank, ranks.size, "0", notices, told, watchdog, lambda: False, period=0.02)
        self.step, self._seconds, self._exchange, self._last = 0, step_seconds, exchange, last
        self.signal = None

    def run(self):
        self.stopping.begin(1)
        stops = False
        while not stops and self.step < self._last:
            if self._exchange is not None:
                self._exchange.wait(30)
            time.sleep(self._seconds)
            self.step += 1
            stops = self.stopping.done(self.step)
        self.signal = self.stopping.leave()


def _train(seconds, exchange=None, last=LAST, notices=None):
    """Starts a training per rank, with these seconds per step, and returns the trainings."""
    ranks, notices = Ranks(len(seconds)), notices or Board()
    trainings = [_Training(ranks, notices, rank, each, exchange, last) for rank, each in enumerate(seconds)]
    for training in trainings:
        training.start()
    return trainings


def _join(trainings):
    for training in trainings:
        training.join(30)
        assert not training.is_alive()


@pytest.mark.parametrize("asked", [0, 2])
def test_all_ranks_stop_after_the_same_step_if_one_is_asked(asked):
    trainings = _train([0.001, 0.002, 0.004], threading.Barrier(3))
    time.sleep(random.random() / 5)
    trainings[asked].stopping.ask(signal.SIGTERM)
    _join(trainings)
    (step,) = {each.step for each in trainings}
    assert 0 < step < LAST
    assert [each.signal for each in trainings] == 3 * [signal.SIGTERM]
    assert [each.stopping.asked for each in trainings] == 3 * [[asked]]


def test_ranks_that_do_not_wait_stop_after_the_step_of_the_furthest():
    trainings = _train([0.001, 0.01])
    time.sleep(0.2)
    trainings[1].stopping.ask(signal.SIGINT)
    asked_at = trainings[0].step
    _join(trainings)
    assert trainings[0].step == trainings[1].step
    assert asked_at <= trainings[0].step < LAST


def test_ranks_leave_together_unasked_or_asked_in_their_last_step():
    trainings = _train([0.0, 0.001], last=20)
    _join(trainings)
    assert [(each.step, each.signal, each.stopping.asked) for each in trainings] == 2 * [(20, 0, [])]
    trainings = _train([0.0, 0.1], last=1)
    trainings[1].stopping.ask(signal.SIGTERM)
    _join(trainings)
    assert [(each.step, each.signal) for each in trainings] == 2 * [(1, signal.SIGTERM)]


def test_a_lone_worker_stops_after_the_step_that_it_is_in():
    stopping = Stopping(0, 1, "0", None, None, Watchdog("rank 0", timeout=60.0), lambda: False)
    stopping.begin(8)
    assert not stopping.done(8)
    stopping.ask(signal.SIGTERM)
    assert stopping.done(9)
    assert stopping.leave() == signal.SIGTERM


def _shut_down(told):
    raise RuntimeError("Horovod has been shut down")


@pytest.mark.parametrize(("all_sum", "is_lost"), [(_shut_down, False), (None, True)], ids=["ended", "lost"])
def test_a_rank_whose_others_are_lost_continues_to_the_error_that_says_so(all_sum, is_lost):
    watchdog = Watchdog("rank 0", timeout=60.0)
    stopping = Stopping(0, 2, "0", Board(), all_sum, watchdog, lambda: is_lost, period=0.01)
    stopping.begin(1)
    stopping.ask(signal.SIGTERM)
    assert [stopping.done(step) for step in (1, 2)] == [False, False]
    assert not is_lost or stopping.signal == 0
    stopping.close()


class _Forgetful(Board):
    """Loses a notice the first times, as where another program removes it from the server."""

    def __init__(self, times):
        super().__init__()
        put, self.lost = self.put, []

        def losing(key, text):
            self.lost.append(key)
            if len(self.lost) > times:
                put(key, text)

        self.put = losing


def test_a_notice_that_is_removed_is_given_again():
    notices = _Forgetful(3)
    trainings = _train([0.01, 0.01], last=100_000, notices=notices)
    trainings[1].stopping.ask(signal.SIGTERM)
    _join(trainings)
    assert len(notices.lost) > 3 and trainings[0].step == trainings[1].step
