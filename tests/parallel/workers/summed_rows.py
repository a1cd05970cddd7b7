"""Trains in several ways with --deterministic. Rank 0 leaves in OUT/NAME.npz the variables and rows of each.

Each rank leaves in OUT/NAME-RANK.npz the dense variables of its session.

python summed_rows.py DATA OUT SHARES [SERVICE]

So many workers as SHARES train on batches of different weights. A lone worker trains on the batches of all, joined.
With SERVICE, host:port of an embedding service, the workers of several hosts train in the ways of `OF_HOSTS`.
"""

import dataclasses
import functools
import os
import sys

import numpy as np

from ctr_trainer.data.batch import Bag, Batch
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.program import run_program
from ctr_trainer.models import deepfm, din
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from tests import checkpoints
from tests.constant import CONSTANT
from tests.parallel.summed import NORMED, OF_HOSTS, WAYS
from tests.row_optimizers import row_optimizer

data, out, shares, service = sys.argv[1], sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])


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


class Weighed:
    """The batches of a rank, whose examples have the weights 0, 0.5 and 1, on odd ranks mostly 0; or all 1."""

    def __init__(self, batch_size, rank, is_weighed, is_frozen):
        self._reader, self._rank = BatchReader(data, batch_size, rank, shares, shuffle=False), rank
        self._weights = [1.0] if not is_weighed else [0.0, 0.0, 0.5, 0.0] if rank % 2 else [0.5, 1.0, 1.0]
        pretrained = tuple(dataclasses.replace(each, trained=not is_frozen) for each in self._reader.spec.pretrained)
        self.spec = dataclasses.replace(self._reader.spec, pretrained=pretrained)
        self.statistics, self.batch_size = self._reader.statistics, batch_size

    def __iter__(self):
        for batch in self._reader:
            weights = np.resize(self._weights, len(batch.weights))
            yield dataclasses.replace(batch, weights=batch.weights * weights.astype(np.float32))


class All(Weighed):
    """The batches of all ranks, joined."""

    def __init__(self, batch_size, *how):
        super().__init__(batch_size, 0, *how)
        self._readers = [Weighed(batch_size, rank, *how) for rank in range(shares)]
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
        row_copies=way.row_copies,
        l2=way.l2,
        clip_norm=way.clip_norm,
    )
    config = RunConfig(deterministic=True, save_checkpoints_steps=0, embedding=embedding)
    model = {"deepfm": deepfm, "din": din}[way.model]
    params = getattr(model, "Params", ModelParams)(train_op, hidden_units=(8,), batch_norm=way.batch_norm)
    estimator, witness = Estimator(model.model_fn, f"{out}/{name}", params, config), checkpoints.Witness()
    rank, several = distributed.rank(), distributed.size() > 1
    how = way.is_weighed, way.is_frozen
    batches = Weighed(16, rank, *how) if several else All(16, *how)
    estimator.train(lambda: batches, hooks=[witness], max_steps=way.steps)
    np.savez(f"{out}/{name}-{rank}.npz", **checkpoints.by_file_name(witness.dense))
    checkpoint = estimator.latest_checkpoint()  # All ranks ask for the checkpoint.
    if distributed.is_chief():
        np.savez(f"{out}/{name}.npz", **checkpoints.by_file_name(checkpoints.values(checkpoint)))


def main():
    normed = NORMED if distributed.size() == 2 else {}
    for name, way in (OF_HOSTS if shares > 2 else WAYS | normed).items():
        train(name, way)


distributed.init(deterministic=True)
os.makedirs(out, exist_ok=True)
sys.exit(run_program(main))
