"""A small DeepFM, which most tests of a training train on the data of `tests.small`."""

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams


def estimator(model_dir, train_op=None, hidden_units=(8,), model_fn=deepfm.model_fn, **config):
    """Returns an Estimator on one thread; by default with Adagrad at the rates 0.1 (dense) and 0.3 (rows)."""
    params = ModelParams(train_op or TrainOp("adagrad", 0.1, 0.3), hidden_units=hidden_units)
    return Estimator(model_fn, model_dir, params, RunConfig(threads=1, **config))


def batches(data, batch_size=32, **settings):
    """Returns an input_fn that reads on from the position of a checkpoint."""
    return lambda position: BatchReader(data, batch_size, position=position, **settings)
