"""What two workers do in strict_sgd.py, in one process: batches of both, side by side."""

import numpy as np

from ctr_trainer.data.batch import Bag, Batch
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from tests import checkpoints
from tests.constant import CONSTANT

BATCH_SIZE, LEARNING_RATE, DENSE_RATE = 16, 0.5, 0.2


class BothWorkers:
    """The batches of ranks 0 and 1 of 2, joined."""

    def __init__(self, data):
        self._readers = [BatchReader(data, BATCH_SIZE, rank, 2, shuffle=False) for rank in (0, 1)]
        self.spec, self.statistics = self._readers[0].spec, self._readers[0].statistics
        self.batch_size = 2 * BATCH_SIZE

    def __iter__(self):
        return (joined(*batches) for batches in zip(*self._readers, strict=True))


def joined(a, b):
    """Returns the batch of the examples of both batches."""
    bags = {name: _join_bags(a.bags[name], b.bags[name]) for name in a.bags}
    keys = {name: np.concatenate([a.keys[name], b.keys[name]]) for name in a.keys}
    dense, labels, weights = (
        np.concatenate([getattr(a, name), getattr(b, name)]) for name in ("dense", "labels", "weights")
    )
    return Batch(a.size + b.size, keys, bags, dense, labels, weights)


def _join_bags(a, b):
    weights = None if a.weights is None else np.concatenate([a.weights, b.weights])
    return Bag(np.concatenate([a.values, b.values]), np.concatenate([a.splits, b.splits[1:] + a.splits[-1]]), weights)


def train(data, out, steps):
    """Returns the dense variables after this number of steps, by name, and the service's `keys` and `rows`."""
    # What --scale_lr=linear makes of two workers' rates.
    params = ModelParams(TrainOp("sgd", 2 * DENSE_RATE, 2 * LEARNING_RATE, **CONSTANT), hidden_units=(8,))
    embedding = EmbeddingConfig(optimizer="sgd", sync_steps=1)
    config = RunConfig(threads=1, prefetch_batches=0, save_checkpoints_steps=0, embedding=embedding)
    estimator = Estimator(deepfm.model_fn, out / "model", params, config)
    estimator.train(lambda: BothWorkers(data), max_steps=steps)
    return checkpoints.by_file_name(checkpoints.values(estimator.latest_checkpoint()))
