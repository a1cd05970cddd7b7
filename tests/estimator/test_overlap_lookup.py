"""Training with rows looked up and trained beside the steps, and with tables whose rows come and go."""

import dataclasses

import numpy as np
import pytest

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import TableLimits
from tests.checkpoints import rows_by_key, values
from tests.constant import CONSTANT
from tests.estimator import deepfm


def _train(data, model_dir, max_steps, overlap=True, save_every=0, accumulation_steps=1):
    """Trains, and returns the dense variables, keys and rows of the last checkpoint."""
    # Steps so small that a row's gradients hardly depend on the steps before.
    embedding = EmbeddingConfig(overlap_lookup=overlap, optimizer="sgd", stddev=0.1)
    train_op = TrainOp("sgd", 1e-3, 1e-3, accumulation_steps=accumulation_steps, **CONSTANT)
    estimator = deepfm.estimator(model_dir, train_op, save_checkpoints_steps=save_every, embedding=embedding)
    estimator.train(deepfm.batches(data), max_steps=max_steps)
    return values(estimator.latest_checkpoint())


def _rows_of(trained, keys):
    return trained["rows"][np.searchsorted(trained["keys"], keys)]


def _equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("accumulation_steps", (1, 2))
def test_a_run_is_repeatable_and_a_resumed_one_ends_identically(data, tmp_path, accumulation_steps):
    whole = _train(data, tmp_path / "whole", 24, save_every=12, accumulation_steps=accumulation_steps)
    _train(data, tmp_path / "parts", 12, save_every=12, accumulation_steps=accumulation_steps)
    parts = _train(data, tmp_path / "parts", 24, save_every=12, accumulation_steps=accumulation_steps)
    assert _equal(whole, parts)


def test_a_row_is_trained_by_every_step_that_read_it(data, tmp_path):
    start, in_turn = (_train(data, tmp_path / f"in_turn{n}", n, overlap=False) for n in (20, 40))
    beside = _train(data, tmp_path / "beside", 40)
    keys = start["keys"]  # All of the data: 20 steps are two epochs.
    changes = _rows_of(in_turn, keys) - _rows_of(start, keys)
    lagged = _rows_of(beside, keys) - _rows_of(start, keys)
    assert not np.array_equal(changes, lagged)
    assert np.linalg.norm(lagged - changes) < 0.02 * np.linalg.norm(changes)


def test_settled_after_each_step_it_is_training_in_turn(data, tmp_path):
    in_turn = _train(data, tmp_path / "in_turn", 6, overlap=False, save_every=1)
    beside = _train(data, tmp_path / "beside", 6, save_every=1)
    np.testing.assert_array_equal(_rows_of(beside, in_turn["keys"]), in_turn["rows"])
    assert all(np.array_equal(in_turn[name], beside[name]) for name in in_turn.keys() - {"keys", "rows"})


def _keys_after(data, model_dir, max_steps, **limits):
    """Returns the keys that have rows in the checkpoint after `max_steps` training steps."""

    def input_fn(position):
        reader = BatchReader(data, 16, 0, 1, position=position, seed=5)
        reader.spec = dataclasses.replace(reader.spec, limits=(TableLimits("dim4", **limits),))
        return reader

    embedding = EmbeddingConfig(optimizer="sgd", sync_steps=5)
    config = dict(save_checkpoints_steps=10, summary_steps=0, embedding=embedding)
    estimator = deepfm.estimator(model_dir, TrainOp("sgd", 0.1, 0.5, **CONSTANT), (4,), **config)
    estimator.train(input_fn, max_steps=max_steps)
    return rows_by_key(estimator.latest_checkpoint()).keys()


def test_limits_of_the_feature_spec_hold_in_training_and_across_checkpoints(data, tmp_path):
    everything = _keys_after(data, tmp_path / "all", 30)
    bounded = _keys_after(data, tmp_path / "bounded", 30, max_rows=90)
    assert len(everything) > 100
    assert len(bounded) <= 90
    assert bounded < everything
    frequent = _keys_after(data, tmp_path / "frequent", 30, min_frequency=5)
    assert 0 < len(frequent) < len(everything)
    assert frequent < everything


def test_a_run_that_goes_on_evicts_what_an_uninterrupted_one_does(data, tmp_path):
    limits = dict(max_rows=100, eviction="lfu", ttl_steps=8)
    whole = _keys_after(data, tmp_path / "whole", 30, **limits)
    _keys_after(data, tmp_path / "parts", 10, **limits)
    assert _keys_after(data, tmp_path / "parts", 30, **limits) == whole
