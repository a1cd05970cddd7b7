import numpy as np
import pytest

from ctr_trainer.data.statistics import DistinctSketch

KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50_000)


def test_few_keys_are_counted_exactly_and_0_is_none():
    sketch = DistinctSketch(KEYS[:900], size=1000)
    sketch.add(np.concatenate([KEYS[500:999], [0]]))
    assert sketch.count == 999


def test_many_keys_are_estimated_and_keys_of_two_sketches_count_once():
    first, second = DistinctSketch(KEYS[:30_000], size=1000), DistinctSketch(KEYS[20_000:], size=1000)
    assert [first.count, second.count] == pytest.approx([30_000] * 2, rel=0.1)  # three standard errors
    first.merge(second)
    assert first.count == DistinctSketch(KEYS, size=1000).count == pytest.approx(50_000, rel=0.1)
