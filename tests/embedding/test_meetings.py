import numpy as np
import pytest

from ctr_trainer.embedding.meetings import Meetings
from ctr_trainer.embedding.memory import PrivateMemory


def _rows(count):
    meetings = Meetings(PrivateMemory(), 1 << 20)
    for array in meetings.arrays:
        array.reserve(count)
    return meetings


def _window(meetings, *steps):
    """Steps of the rows given for each, then the end of the window."""
    for slots in steps:
        meetings.step(np.array(slots, np.int64))
    meetings.begin_window()


def _take(meetings, *slots):
    rates, steps = meetings.take(np.array(slots))
    return rates.tolist(), steps.tolist()


def test_a_step_that_met_a_row_at_all_says_nothing_of_how_often_it_is_met():
    meetings = _rows(3)
    _window(meetings, [0, 1], [0], [0, 2], [0], [0, 2])
    assert _take(meetings, 0, 1, 2) == ([1.0, 0.0, 0.25], [5, 1, 2])  # 4 / 4, 0 / 4, 1 / 4


def test_all_windows_since_a_row_was_first_met_count_those_without_it_too():
    meetings = _rows(2)
    _window(meetings, [], [], [])
    _window(meetings, [0], [0], [])
    assert _take(meetings, 0) == ([0.5], [2])  # (2 - 1) / (3 - 1)
    _window(meetings, [], [])
    _window(meetings, [0], [], [], [])
    assert _take(meetings, 0) == ([0.25], [1])  # (3 - 1) / (9 - 1)


def test_with_a_step_a_window_the_rate_is_known_from_the_second_meeting_on():
    meetings = _rows(1)
    _window(meetings, [0])
    assert _take(meetings, 0) == ([0.0], [1])
    _window(meetings, [])
    _window(meetings, [0])
    assert _take(meetings, 0) == ([0.5], [1])  # (2 - 1) / (3 - 1)


def test_steps_beside_a_sync_count_once():
    meetings = _rows(2)
    _window(meetings, [0], [0])
    meetings.step(np.array([0, 1]))  # Before the rows of the window are taken.
    assert _take(meetings, 0) == ([1.0], [3])
    _window(meetings, [])
    assert _take(meetings, 0, 1) == ([pytest.approx(2 / 3), 0.0], [0, 1])


def test_what_is_long_ago_counts_half_as_much_each_time():
    meetings = _rows(1)
    _window(meetings, *[[0]] * 600)
    assert _take(meetings, 0) == ([1.0], [600])
    _window(meetings, *[[]] * 100)
    assert _take(meetings, 0) == ([pytest.approx(299 / 399)], [0])  # 300 of 300 are left of the 600.
