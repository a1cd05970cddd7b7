"""W1's dense tower alone: the graph of `ours.py`, fed the same rows each step, which nobody updates. Prints examples/s.

What remains when lookups and updates cost nothing: the limit of any worker on this core.
"""

import argparse
import json
import os
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--cores", default="0", help="the core to run on")
    parser.add_argument("--mixed_precision", default="none")
    flags = parser.parse_args()
    os.sched_setaffinity(0, {int(core) for core in flags.cores.split(",")})

    import numpy as np
    import tensorflow as tf

    from ctr_trainer.bench import workload as w1
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.features.tensors import FedFeatures
    from ctr_trainer.graph_notes.estimator_spec import ModeKeys
    from ctr_trainer.graph_notes.notes import notes
    from ctr_trainer.models import deepfm
    from ctr_trainer.models.params import ModelParams
    from ctr_trainer.ranks import distributed

    tf1 = tf.compat.v1
    distributed.init()
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        batch = next(iter(w1.W1Batches(flags.batch_size, 1)))
        features = FedFeatures(w1.spec(), {}, flags.batch_size)
        params = ModelParams(TrainOp("adagrad", w1.LEARNING_RATE), w1.HIDDEN_UNITS)
        spec = deepfm.model_fn(features, features.labels, ModeKeys.TRAIN, params)
        rng = np.random.default_rng(0)
        feed = {row: w1.STDDEV * rng.standard_normal(row.shape, dtype=np.float32) for row in features.placeholders}
        feed |= {features.labels: batch.labels, features.weights: batch.weights, features.dense: batch.dense}
        fetches = [spec.train_op, notes().row_training.gradients]
        with tf1.Session(config=distributed.session_config(1, flags.mixed_precision)) as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(flags.warmup):
                session.run(fetches, feed)
            start = time.perf_counter()
            for _ in range(flags.steps):
                session.run(fetches, feed)
            seconds = time.perf_counter() - start
    print(json.dumps({"examples_per_sec": flags.steps * flags.batch_size / seconds}))


if __name__ == "__main__":
    main()
