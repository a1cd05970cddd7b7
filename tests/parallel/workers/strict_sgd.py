"""Trains in several ways with --deterministic and a copy of the rows per worker.

Leaves in OUT/NAME-RANK.npz what each has at the end of each.

python strict_sgd.py DATA OUT STEPS

The dense variables are those of the session of this rank; rank 0 adds `keys` and `rows`, what the service holds.
"""

import os
import sys

import numpy as np

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm, din
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from tests import checkpoints
from tests.constant import CONSTANT

data, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
RATE, DENSE_RATE = 0.5, 0.2


def train(name, steps, optimizer="sgd", batch_size=16, batch_norm=False, model=deepfm, **settings):
    train_op = TrainOp(optimizer, DENSE_RATE, RATE, scale_lr="linear", **CONSTANT, **settings)
    config = RunConfig(
        threads=1,
        prefetch_batches=0,
        save_checkpoints_steps=0,
        deterministic=True,
        embedding=EmbeddingConfig(optimizer=optimizer, learning_rate=RATE, sync_steps=1, row_copies="worker"),
    )
    own = getattr(model, "Params", ModelParams)
    params = own(train_op, hidden_units=(8,), batch_norm=batch_norm)
    estimator = Estimator(model.model_fn, f"{out}/{name}", params, config)
    witness = checkpoints.Witness()
    reader = BatchReader(data, batch_size, distributed.rank(), distributed.size(), shuffle=False)
    estimator.train(lambda: reader, hooks=[witness], max_steps=steps)
    checkpoint, found = estimator.latest_checkpoint(), dict(witness.dense)  # All ranks ask for the checkpoint.
    if distributed.is_chief():
        saved = checkpoints.values(checkpoint)
        assert all((saved[each] == value).all() for each, value in witness.dense.items())
        found.update(keys=saved["keys"], rows=saved["rows"])
    np.savez(f"{out}/{name}-{distributed.rank()}.npz", **checkpoints.by_file_name(found))


distributed.init()
os.makedirs(out, exist_ok=True)
train("sgd", steps)
train("batch_norm", 10, batch_norm=True)
train("local", 10, "adagrad", batch_norm=True, dense_sync_steps=4)
train("overlap", 10, "adagrad", batch_norm=True, overlap_allreduce=True)
train("dice", 10, model=din)
