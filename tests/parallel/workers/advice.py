"""Trains while rank 1 sleeps in each step, and writes the advice of the summary to OUT on rank 0.

python advice.py DATA MODEL_DIR OUT
"""

import json
import pathlib
import sys
import time

import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.hooks import measuring_hooks
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed

STEPS = 110


class Sleeps(tf.compat.v1.train.SessionRunHook):
    """Sleeps before each step on rank 1."""

    def before_run(self, run_context):
        if distributed.rank() == 1:
            time.sleep(0.2)


def main():
    data, model_dir, out = sys.argv[1:]
    distributed.init()
    measuring_hooks.core_seconds = lambda: (1.0, 0.0)  # Other processes may want the cores of this machine.
    config = RunConfig(threads=1, embedding=EmbeddingConfig(service="shared"), save_checkpoints_steps=10_000)
    params = ModelParams(TrainOp("adagrad", 0.1, 0.3), hidden_units=(8,))
    estimator = Estimator(deepfm.model_fn, model_dir, params, config)

    def read(position):
        return BatchReader(data, 128, distributed.rank(), distributed.size(), position=position)

    result = estimator.train(read, max_steps=STEPS, hooks=[Sleeps()]).last_training
    if distributed.is_chief():
        pathlib.Path(out).write_text(json.dumps(result.advice))


main()
