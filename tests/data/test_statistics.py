"""The figures of a data set: quantiles, distinct keys, moments."""

import numpy as np
import pytest

from ctr_trainer.data.statistics import DistinctCount, DistinctSketch, Moments, Quantiles

KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50_000)


def boundaries(values, count, **options):
    quantiles = Quantiles(count, **options)
    for part in np.array_split(np.float32(values), 3):
        quantiles.add(part)
    return quantiles.boundaries().tolist()


def test_buckets_are_equally_full():
    assert boundaries([4, 1, 3, 2, 8, 7, 6, 5], 4) == [3, 5, 7]  # {1, 2}, {3, 4}, {5, 6}, {7, 8}
    assert boundaries([1, 2, 3, np.nan, np.nan, 4], 2) == [3]


def test_no_bucket_is_empty():
    assert boundaries([0, 0, 0, 0, 0, 0, 1, 2], 4) == [1]
    assert boundaries([5, 5, 5], 10) == []
    assert boundaries([], 10) == boundaries([np.nan], 10) == []


def test_more_values_than_are_kept_are_sampled_uniformly():
    values = np.arange(100_000)
    found = boundaries(values, 4, sample=5_000)
    # The deviation of a sample's median is 0.5 / sqrt(5000) = 0.7 % of the range.
    np.testing.assert_allclose(found, [25_000, 50_000, 75_000], atol=4_000)
    assert boundaries(values, 4, sample=5_000) == found


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


def test_merged_moments_equal_the_moments_of_the_whole():
    values = np.array([1.0, np.nan, 4.0, 1e6, 1e6 + 2, np.nan, -3.0])
    moments = Moments()
    for part in (values[:2], values[2:2], values[1:2], values[2:]):
        moments.add(part)
    present = values[~np.isnan(values)]
    wanted = dict(mean=present.mean(), std=present.std(), min=-3.0, max=1e6 + 2, count=5)
    assert moments.to_dict() == pytest.approx(wanted)


def test_no_present_value_gives_zeros():
    assert Moments().to_dict() == dict(mean=0.0, std=0.0, min=0.0, max=0.0, count=0)


def test_few_keys_are_counted_exactly_and_0_is_none():
    sketch = DistinctSketch(KEYS[:900], size=1000)
    sketch.add(np.concatenate([KEYS[500:999], [0]]))
    assert sketch.count == 999


def test_many_keys_are_estimated_and_keys_of_two_sketches_count_once():
    first, second = DistinctSketch(KEYS[:30_000], size=1000), DistinctSketch(KEYS[20_000:], size=1000)
    assert [first.count, second.count] == pytest.approx([30_000] * 2, rel=0.1)  # three standard errors
    first.merge(second)
    assert first.count == DistinctSketch(KEYS, size=1000).count == pytest.approx(50_000, rel=0.1)
