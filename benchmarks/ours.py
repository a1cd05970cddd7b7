"""W1 through the Estimator, with its hooks and log, table in the process. Prints examples/s as JSON."""

import argparse
import json
import os
import tempfile
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--core", type=int, default=0, help="the core to run on")
    parser.add_argument("--prefetch_batches", type=int, default=0)
    flags = parser.parse_args()
    os.sched_setaffinity(0, {flags.core})

    import tensorflow as tf
    import w1

    from ctr_trainer import distributed
    from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.models import deepfm
    from ctr_trainer.models.params import ModelParams

    class Clock(tf.compat.v1.train.SessionRunHook):
        """The times at which steps began."""

        def __init__(self):
            self.times = []

        def before_run(self, run_context):
            self.times.append(time.perf_counter())

        def end(self, session):
            self.times.append(time.perf_counter())

    distributed.init()
    clock = Clock()
    train_op = TrainOp("adagrad", w1.LEARNING_RATE)
    embedding = EmbeddingConfig(
        learning_rate=w1.LEARNING_RATE, initial_accumulator=w1.INITIAL_ACCUMULATOR, init_stddev=w1.STDDEV
    )
    config = RunConfig(
        threads=1, save_checkpoints_steps=0, prefetch_batches=flags.prefetch_batches, embedding=embedding
    )
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = Estimator(deepfm.model_fn, model_dir, ModelParams(train_op, w1.HIDDEN_UNITS), config)
        batches = w1.W1Batches(flags.batch_size, flags.warmup + flags.steps + 1)
        estimator.train(lambda: batches, hooks=[clock])
    seconds = clock.times[flags.warmup + flags.steps] - clock.times[flags.warmup]
    print(json.dumps({"examples_per_sec": flags.steps * flags.batch_size / seconds}))


if __name__ == "__main__":
    main()
