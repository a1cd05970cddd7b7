"""Trains in several ways; leaves in OUT/NAME-RANK.npz the dense variables that each ends with and, of rank 0, the rows.

python deterministic.py DATA OUT SLOW_RANK [SERVICE]

The rank SLOW_RANK sleeps for a random time before and after some steps, and the training ends at its first checkpoint
and resumes from it; -1 for an undisturbed training.
With SERVICE, host:port of an embedding service, it trains in one way only, `hosts`.
"""

import os
import random
import sys
import time

import numpy as np
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.program import run_program
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from tests import checkpoints
from tests.constant import CONSTANT

data, out, slow_rank, service = sys.argv[1], sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])
STEPS, CHECKPOINT_STEPS, LONGEST_SECONDS = 30, 12, 0.03


class Delays(tf.compat.v1.train.SessionRunHook):
    """Sleeps between the lookup of a step and its run, and between the run and the next lookup."""

    def before_run(self, run_context):
        self._sleep()

    def after_run(self, run_context, run_values):
        self._sleep()

    def _sleep(self):
        if distributed.rank() == slow_rank and random.random() < 0.5:
            time.sleep(random.uniform(0, LONGEST_SECONDS))


def train(name, deterministic=True, settings=None, **rows):
    train_op = TrainOp("adam", 0.02, 0.5, **CONSTANT, **(settings or {}))
    embedding = EmbeddingConfig(**{"optimizer": "adagrad", "learning_rate": 0.5, "sync_steps": 7, **rows})
    config = RunConfig(
        deterministic=deterministic,
        prefetch_batches=3,
        save_checkpoints_steps=CHECKPOINT_STEPS,
        log_steps=10,
        embedding=embedding,
    )
    params = ModelParams(train_op, hidden_units=(16, 8), dropout=0.1)
    estimator, witness = Estimator(deepfm.model_fn, f"{out}/{name}", params, config), checkpoints.Witness()

    def input_fn(position):
        how = dict(num_readers=2, position=position, negative_sampling=0.7)
        return BatchReader(data, 16, distributed.rank(), distributed.size(), **how)

    for stop in (STEPS,) if slow_rank < 0 else (CHECKPOINT_STEPS, STEPS):
        estimator.train(input_fn, hooks=[Delays(), witness], max_steps=stop)
    checkpoint, found = estimator.latest_checkpoint(), dict(witness.dense)  # All ranks ask for the checkpoint.
    if distributed.is_chief():
        found |= checkpoints.rows(checkpoint)
    np.savez(f"{out}/{name}-{distributed.rank()}.npz", **checkpoints.by_file_name(found))


def main():
    if service:
        train("hosts", service=service, row_dtype="int8")
        return
    train("as_they_come", deterministic=False)
    train("rows_of_host")
    train("averaged", settings={"dense_sync_steps": 7})
    train("micro_batches", settings={"accumulation_steps": 2})
    train("own_rows", row_copies="worker", row_dtype="int8")
    train("shared", service="shared", row_dtype="int8")
    train("dense", service="shared", optimizer="dense_adagrad", l2=0.01)


distributed.init(deterministic=True)
os.makedirs(out, exist_ok=True)
sys.exit(run_program(main))
