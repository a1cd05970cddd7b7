"""Trains in situations that slow a job down, and writes the advice for each to --out on rank 0.

Situations: `batch` (batches of 8), `slow` (rank 1 sleeps in each step), `fp16` (float16 gradients on one host), `load`
(the job runs on one core, which other processes want as well), `service` (the service at --service answers late).
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
from ctr_trainer.settings.embedding_config import SecurityFiles

STEPS = 110


class Sleeps(tf.compat.v1.train.SessionRunHook):
    """Sleeps before each step on rank 1."""

    def before_run(self, run_context):
        if distributed.rank() == 1:
            time.sleep(0.2)


def train(situation, args):
    """Returns the advice of a training in a situation."""
    train_op = TrainOp("adagrad", 0.1, 0.3, fp16_allreduce=situation == "fp16")
    security = SecurityFiles(token_file=args.token)
    embedding = EmbeddingConfig(service=args.service or "shared", sync_steps=5, security=security)
    config = RunConfig(threads=1, embedding=embedding, save_checkpoints_steps=10_000)
    params, model_dir = ModelParams(train_op, hidden_units=(8,)), f"{args.model_dir}-{situation}"
    batch_size = 8 if situation == "batch" else 128

    def read(position):
        return BatchReader(args.data, batch_size, distributed.rank(), distributed.size(), position=position)

    estimator = Estimator(deepfm.model_fn, model_dir, params, config)
    hooks = [Sleeps()] if situation == "slow" else []
    return estimator.train(read, max_steps=STEPS, hooks=hooks).last_training


def main():
    parser = argparse.ArgumentParser()
    for name in ("situations", "data", "model_dir", "out", "service", "token"):
        parser.add_argument(f"--{name}", default="")
    args = parser.parse_args()
    distributed.init()
    if args.situations == "load":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    else:  # Other processes may want the cores of the machine that runs this test.
        measuring_hooks.core_seconds = lambda: (1.0, 0.0)
    results = {situation: train(situation, args) for situation in args.situations.split(",")}
    if distributed.is_chief():
        pathlib.Path(args.out).write_text(json.dumps({name: each.advice for name, each in results.items()}))


main()
