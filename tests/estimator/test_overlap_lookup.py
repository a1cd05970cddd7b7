"""Training with rows looked up and trained beside the steps."""

import numpy as np
import pytest

from ctr_trainer.estimator import EmbeddingConfig
from ctr_trainer.estimator.optimize import TrainOp
from tests.checkpoints import values
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
def test_a_run_is_repeatable_and_a_resumed_one_ends_where_an_undisturbed_one_does(data, tmp_path, accumulation_steps):
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
