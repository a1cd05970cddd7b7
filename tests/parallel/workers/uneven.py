"""Workers train on a `tf.data` input, first with shorter inputs padded, then with an error where one ends earlier.

Arguments: a directory, then the batches of each rank; before them `own_loop` for the loop of a program alone.

The rows of all ranks are different. A lone worker's step takes the batches of all ranks at once. The optimizer's
momentum moves its variables even where a gradient is 0. Rank 0 writes what the first `train` returns to pad.json.
"""

import json
import pathlib
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from ctr_trainer.estimator import Estimator, RunConfig, own_loop
from ctr_trainer.estimator.program import run_program
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1
BATCH = 8


def batches_of(rank, number):
    """Returns a list of `number` batches (features, labels), the last of which lacks 3 rows."""
    rows, draw = number * BATCH - 3, np.random.default_rng(rank)
    ids, x = draw.integers(0, 40, rows), draw.normal(size=(rows, 4)).astype(np.float32)
    labels = (x[:, 0] + ids % 3 > 1).astype(np.float32)
    return [({"x": x[i : i + BATCH], "id": ids[i : i + BATCH]}, labels[i : i + BATCH]) for i in range(0, rows, BATCH)]


def steps(batches):
    """Yields this rank's batches; for a lone worker those of all ranks together."""
    if distributed.size() > 1:
        yield from batches_of(distributed.rank(), batches[distributed.rank()])
        return
    shares = [batches_of(rank, number) for rank, number in enumerate(batches)]
    for step in range(max(map(len, shares))):
        parts = [share[step] for share in shares if step < len(share)]
        yield tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def model_fn(features, labels, mode, params):
    weights = tf1.get_variable("w", [4, 1], initializer=tf1.zeros_initializer())
    rows = tf1.get_variable("rows", [40], initializer=tf1.zeros_initializer())
    logits = tf.matmul(features["x"], weights)[:, 0] + tf.gather(rows, features["id"])
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    return EstimatorSpec(mode, {"logits": logits}, loss, optimizer=tf1.train.MomentumOptimizer(0.3, 0.9))


def input_of(batches):
    signature = (
        {"x": tf.TensorSpec([None, 4], tf.float32), "id": tf.TensorSpec([None], tf.int64)},
        tf.TensorSpec([None], tf.float32),
    )
    return lambda: tf.data.Dataset.from_generator(lambda: steps(batches), output_signature=signature)


def train(directory, uneven_inputs, batches):
    """Trains in `directory / uneven_inputs`. -> what `Estimator.train` returns."""
    config = RunConfig(threads=1, save_checkpoints_steps=4, uneven_inputs=uneven_inputs)
    estimator = Estimator(model_fn, directory / uneven_inputs, config=config)
    return estimator.train(input_of(batches)).last_training


def train_in_own_loop(directory, batches):
    with own_loop(model_fn, input_of(batches), directory, RunConfig(threads=1)) as loop:
        saved = loop.checkpoint_dir if distributed.is_chief() else None
        hooks = [hvd.BroadcastGlobalVariablesHook(0), *loop.hooks]
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=saved, hooks=hooks, save_checkpoint_secs=None
        ) as session:
            while not session.should_stop():
                session.run(loop.train_op)


def main():
    *how, directory, one, other = sys.argv[1:]
    directory, batches = pathlib.Path(directory), [int(one), int(other)]
    if how:
        train_in_own_loop(str(directory), batches)
        return
    result = train(directory, "pad", batches)
    if distributed.is_chief():
        (directory / "pad.json").write_text(json.dumps(result and result.to_json()))
    train(directory, "error", batches)


if __name__ == "__main__":
    distributed.init(60.0)
    sys.exit(run_program(main))
