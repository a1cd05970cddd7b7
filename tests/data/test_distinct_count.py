import numpy as np
import pytest

from ctr_trainer.data.statistics import DistinctCount, Moments


def test_keys_are_counted_once_over_all_calls_and_growths():
    rng = np.random.default_rng(0)
    keys = rng.integers(-(2**63), 2**63, 30_000)
    distinct = DistinctCount()
    for part in np.split(rng.choice(keys, 90_000), 9):
        distinct.add(part)
    distinct.add(keys)
    assert distinct.count == len(set(keys.tolist()))


def test_key_0_is_no_value():
    distinct = DistinctCount()
    distinct.add(np.array([0, 5, 0, 5, -5]))
    assert distinct.count == 2


def test_moments_over_parts_are_those_of_the_whole():
    values = np.array([1.0, np.nan, 4.0, 1e6, 1e6 + 2, np.nan, -3.0])
    moments = Moments()
    for part in (values[:2], values[2:2], values[1:2], values[2:]):
        moments.add(part)
    present = values[~np.isnan(values)]
    wanted = dict(mean=present.mean(), std=present.std(), min=-3.0, max=1e6 + 2, count=5)
    assert moments.to_dict() == pytest.approx(wanted)


def test_no_present_value_gives_zeros():
    assert Moments().to_dict() == dict(mean=0.0, std=0.0, min=0.0, max=0.0, count=0)
