"""Training with tables whose rows come and go."""

import dataclasses

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.columns import TableLimits
from tests.checkpoints import rows_by_key
from tests.constant import CONSTANT
from tests.estimator import deepfm


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
