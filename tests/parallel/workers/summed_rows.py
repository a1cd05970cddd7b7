"""Trains in several ways with --deterministic; rank 0 leaves in OUT/NAME.npz the variables and rows of each.

python summed_rows.py DATA OUT SHARES [SERVICE]

So many workers as SHARES train on batches of different weights. A lone worker trains on the batches of all, joined.
With SERVICE, host:port of an embedding service, the workers of several hosts train in the ways of `OF_HOSTS`.
"""

import dataclasses
import functools
import os
import sys

import numpy as np

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.program import run_program
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from tests import checkpoints
from tests.constant import CONSTANT
from tests.parallel.side_by_side import joined
from tests.parallel.summed import OF_HOSTS, WAYS
from tests.row_optimizers import row_optimizer

data, out, shares, service = sys.argv[1], sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])


class Weighed:
    """The batches of a rank, whose examples have the weights 0, 0.5 and 1, on odd ranks mostly 0."""

    def __init__(self, batch_size, rank):
        self._reader, self._rank = BatchReader(data, batch_size, rank, shares, shuffle=False), rank
        self.spec, self.statistics, self.batch_size = self._reader.spec, self._reader.statistics, batch_size

    def __iter__(self):
        for batch in self._reader:
            weights = np.resize([0.0, 0.0, 0.5, 0.0] if self._rank % 2 else [0.5, 1.0, 1.0], len(batch.weights))
            yield dataclasses.replace(batch, weights=batch.weights * weights.astype(np.float32))


class All(Weighed):
    """The batches of all ranks, joined."""

    def __init__(self, batch_size):
        super().__init__(batch_size, 0)
        self._readers = [Weighed(batch_size, rank) for rank in range(shares)]
        self.batch_size = shares * batch_size

    def __iter__(self):
        return (functools.reduce(joined, batches) for batches in zip(*self._readers, strict=True))


def train(name, way):
    train_op = TrainOp("sgd", 0.1, 0.1, scale_lr="none", clip_norm=way.clip_norm, **CONSTANT, **way.settings)
    embedding = EmbeddingConfig(
        service=service or way.service,
        optimizer=row_optimizer(way.optimizer, initial_accumulator=0.1),
        learning_rate=0.1,
        sync_steps=way.sync_steps,
        l2=way.l2,
        clip_norm=way.clip_norm,
    )
    config = RunConfig(deterministic=True, save_checkpoints_steps=0, embedding=embedding)
    estimator = Estimator(deepfm.model_fn, f"{out}/{name}", ModelParams(train_op, hidden_units=(8,)), config)
    several = distributed.size() > 1
    estimator.train(lambda: Weighed(16, distributed.rank()) if several else All(16), max_steps=way.steps)
    checkpoint = estimator.latest_checkpoint()  # All ranks ask for the checkpoint.
    if distributed.is_chief():
        np.savez(f"{out}/{name}.npz", **checkpoints.by_file_name(checkpoints.values(checkpoint)))


def main():
    for name, way in (OF_HOSTS if shares > 2 else WAYS).items():
        train(name, way)


distributed.init(deterministic=True)
os.makedirs(out, exist_ok=True)
sys.exit(run_program(main))
