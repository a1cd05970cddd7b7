import numpy as np
import pytest

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.worker.merging import RowFrequency


def _rows(count):
    frequency = RowFrequency(TableMemory(), 1 << 20)
    for array in frequency.arrays:
        array.reserve(count)
    return frequency


def _window(frequency, *steps):
    """Steps of the rows given for each, then the end of the window."""
    for slots in steps:
        frequency.step(np.array(slots, np.int64))
    frequency.begin_window()


def _take(frequency, *slots):
    rates, steps = frequency.take(np.array(slots))
    return rates.tolist(), steps.tolist()


def test_a_step_that_met_a_row_at_all_says_nothing_of_how_often_it_is_met():
    frequency = _rows(3)
    _window(frequency, [0, 1], [0], [0, 2], [0], [0, 2])
    assert _take(frequency, 0, 1, 2) == ([1.0, 0.0, 0.25], [5, 1, 2])  # 4 / 4, 0 / 4, 1 / 4


def test_all_windows_since_a_row_was_first_met_count_those_without_it_too():
    frequency = _rows(2)
    _window(frequency, [], [], [])
    _window(frequency, [0], [0], [])
    assert _take(frequency, 0) == ([0.5], [2])  # (2 - 1) / (3 - 1)
    _window(frequency, [], [])
    _window(frequency, [0], [], [], [])
    assert _take(frequency, 0) == ([0.25], [1])  # (3 - 1) / (9 - 1)


def test_steps_beside_a_sync_count_once():
    frequency = _rows(2)
    _window(frequency, [0], [0])
    frequency.step(np.array([0, 1]))  # Before the rows of the window are taken.
    assert _take(frequency, 0) == ([1.0], [3])
    _window(frequency, [])
    assert _take(frequency, 0, 1) == ([pytest.approx(2 / 3), 0.0], [0, 1])


def test_what_is_long_ago_counts_half_as_much_each_time():
    frequency = _rows(1)
    _window(frequency, *[[0]] * 600)
    assert _take(frequency, 0) == ([1.0], [600])
    _window(frequency, *[[]] * 100)
    assert _take(frequency, 0) == ([pytest.approx(299 / 399)], [0])  # 300 of 300 are left of the 600.
