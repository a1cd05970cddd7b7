"""Trains in a situation that slows a job down, and writes the advice of its summary to --out on rank 0.

Situations: `slow` (rank 1 sleeps in each step), `load` (the job runs on one core, which other processes want as well).
"""

import argparse
import json
import os
import pathlib
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
    parser = argparse.ArgumentParser()
    for name in ("situation", "data", "model_dir", "out"):
        parser.add_argument(f"--{name}", default="")
    args = parser.parse_args()
    distributed.init()
    if args.situation == "load":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    else:  # Other processes may want the cores of the machine that runs this test.
        measuring_hooks.core_seconds = lambda: (1.0, 0.0)
    config = RunConfig(threads=1, embedding=EmbeddingConfig(service="shared"), save_checkpoints_steps=10_000)
    params = ModelParams(TrainOp("adagrad", 0.1, 0.3), hidden_units=(8,))
    estimator = Estimator(deepfm.model_fn, args.model_dir, params, config)
    hooks = [Sleeps()] if args.situation == "slow" else []

    def read(position):
        return BatchReader(args.data, 128, distributed.rank(), distributed.size(), position=position)

    result = estimator.train(read, max_steps=STEPS, hooks=hooks).last_training
    if distributed.is_chief():
        pathlib.Path(args.out).write_text(json.dumps(result.advice))


main()
