import itertools

import numpy as np
import pytest

from ctr_trainer.data.class_weight import NegativeSampling
from ctr_trainer.data.reader import BatchReader
from tests import small

SHARE = 0.3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("sampling"), rows=1500)


def _batches(data, rank=0, size=1, batch_size=32, epochs=1, position=None, seed=4, num_readers=1):
    order = dict(seed=5, shuffle_buffer=200)
    reader = BatchReader(
        data, batch_size, rank, size, epochs=epochs, position=position, num_readers=num_readers, **order
    )
    return NegativeSampling(reader, SHARE, rank, seed)


def _kept(batches):
    """-> ids of the examples that count."""
    kept = [batch.ids["row"][: batch.size][batch.weights[: batch.size] > 0] for batch in batches]
    return {str(row) for part in kept for row in part}


def test_all_positives_count_and_the_share_of_the_negatives(data):
    negatives = counted = 0
    for batch in _batches(data):
        labels, counts = batch.labels[: batch.size] > 0.5, batch.weights[: batch.size] > 0
        assert counts[labels].all()
        negatives, counted = negatives + (~labels).sum(), counted + counts[~labels].sum()
        assert not batch.weights[batch.size :].any()
    deviation = np.sqrt(negatives * SHARE * (1 - SHARE))
    assert abs(counted - negatives * SHARE) < 4 * deviation


def test_what_does_not_count_has_no_keys(data):
    for batch in _batches(data):
        without = batch.weights == 0
        assert not batch.keys["dim4"][without].any()
        bag = batch.bags["tags"]
        assert not bag.values[np.repeat(without, np.diff(bag.splits))].any()
        assert batch.keys["dim4"][~without].any(1).all()


def test_workers_readers_batch_sizes_and_restarts_change_nothing(data):
    expected = _kept(_batches(data))
    assert _kept(_batches(data, batch_size=7)) == expected
    assert _kept(_batches(data, num_readers=3)) == expected
    assert set().union(*(_kept(_batches(data, rank, 3)) for rank in range(3))) == expected
    first = _kept(itertools.islice(_batches(data), 20))
    position = _batches(data).position_after(20)
    assert first | _kept(_batches(data, position=position)) == expected
    assert 0 < len(first) < len(expected)


def test_epochs_and_seeds_draw_anew(data):
    batches = list(_batches(data, epochs=2))
    half = len(batches) // 2
    once, again = _kept(batches[:half]), _kept(batches[half:])
    assert once == _kept(_batches(data)) != again
    assert _kept(_batches(data, seed=9)) != once
