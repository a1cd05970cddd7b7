"""Trains with SGD under --strict_sync; rank 0 writes the rows that the service holds at the end.

python strict_sgd.py DATA OUT STEPS
"""

import sys

import numpy as np

from ctr_trainer import distributed
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding import snapshot
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams

data, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
BATCH_SIZE, LEARNING_RATE = 16, 0.5

distributed.init()
# The dense variables stay as they are: this is about the rows.
params = ModelParams(TrainOp("sgd", 0.0, LEARNING_RATE, scale_lr="linear"), hidden_units=(8,))
config = RunConfig(
    threads=1,
    prefetch_batches=0,
    save_checkpoints_steps=0,
    embedding=EmbeddingConfig(optimizer="sgd", learning_rate=LEARNING_RATE, sync_steps=1, strict_sync=True),
)
estimator = Estimator(deepfm.model_fn, f"{out}/model", params, config)
reader = BatchReader(data, BATCH_SIZE, distributed.rank(), distributed.size(), shuffle=False)
estimator.train(lambda: reader, max_steps=steps)
checkpoint = estimator.latest_checkpoint()
if distributed.is_chief():
    blocks = [(keys.copy(), rows.copy()) for _, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables)]
    np.savez(
        f"{out}/rows.npz", keys=np.concatenate([k for k, _ in blocks]), rows=np.concatenate([r for _, r in blocks])
    )
