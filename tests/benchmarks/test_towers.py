"""A model in towers trains as the whole model does."""

import numpy as np
import pytest
import tensorflow as tf
from towers import gpus_of, in_towers

from ctr_trainer.commands.experiment.build import start_workers
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm, din
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError
from tests import golden, small
from tests.constant import CONSTANT


def _train(data, model_dir, model_fn, **params):
    losses = golden.Losses(model_fn)
    params = ModelParams(TrainOp("adagrad", 0.05, 0.1, **CONSTANT), hidden_units=(8,), **params)
    estimator = Estimator(losses.model_fn, model_dir, params, RunConfig(threads=1), name="towers")
    estimator.train(lambda: BatchReader(data, 32, shuffle=False, epochs=1), [losses])
    return losses.values


def _din(features, labels, mode, params):
    more = dict(sequences=("history",), target="item", attention_activation="sigmoid", attention_units=(8,))
    return din.model_fn(features, labels, mode, din.Params(params.train_op_fn, hidden_units=(8,), **more))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    distributed.init()
    return small.make(tmp_path_factory.mktemp("towers"), rows=203)  # The last of 7 batches has 11 examples.


@pytest.mark.parametrize(("model_fn", "towers"), [(deepfm.model_fn, 2), (deepfm.model_fn, 4), (_din, 2)])
def test_towers_train_as_the_whole_batch_does(data, tmp_path, model_fn, towers):
    whole = _train(data, tmp_path / "whole", model_fn)
    assert len(whole) == 7
    np.testing.assert_allclose(_train(data, tmp_path / "cut", in_towers(model_fn, towers)), whole, rtol=1e-5)


@pytest.mark.parametrize(("gpus", "towers", "visible"), [(4, 2, "0,1"), (2, 2, "0,1"), (1, 2, "0"), (0, 2, "")])
def test_the_session_sees_a_card_for_each_tower_or_the_first(monkeypatch, gpus, towers, visible):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    try:
        start_workers(Experiment(), gpus_each=gpus_of(towers) or 1)
        assert distributed.session_config().gpu_options.visible_device_list == visible
    finally:
        monkeypatch.undo()
        distributed.init()


def test_what_towers_cannot_do_is_refused(data, tmp_path):
    with pytest.raises(UserError, match="a batch of 32 examples is not divisible by 3 towers"):
        _train(data, tmp_path, in_towers(deepfm.model_fn, 3))
    with pytest.raises(UserError, match="--batch_norm would normalize each tower"):
        _train(data, tmp_path, in_towers(deepfm.model_fn, 2), batch_norm=True)
