import numpy as np

from ctr_trainer.data.statistics import Quantiles


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
