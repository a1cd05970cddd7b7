"""A program of Horovod that gives its model directory on rank 0 only; arguments: the directory, one for results."""

import json
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

from ctr_trainer import estimator as tf_estimator

# 20 examples of rank 0, in batches of 8, 8 and 4, and 9 of rank 1, in batches of 8 and 1.
X = np.random.default_rng(0).normal(size=(29, 3)).astype(np.float32)
SHARES = slice(0, 20), slice(20, 29)


def model_fn(features, labels, mode, config):
    assert config.model_dir == sys.argv[1]
    w = tf.get_variable("w", [3], initializer=tf.ones_initializer())
    loss = tf.reduce_mean((labels - tf.reduce_sum(features["x"] * w, 1)) ** 2)
    optimizer = tf_estimator.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1))
    return tf_estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()))


def input_fn():
    own = X[SHARES[hvd.rank()]]
    return tf.data.Dataset.from_tensor_slices(({"x": own}, own[:, 0])).batch(8)


def main(model_dir, out):
    hvd.init()
    model_dir = model_dir if hvd.rank() == 0 else None
    config = tf_estimator.RunConfig(model_dir=model_dir, threads=1)
    estimator = tf_estimator.Estimator(model_fn, model_dir=model_dir, config=config)
    found = {"before": estimator.model_dir}
    estimator.train(input_fn, max_steps=2)
    metrics = estimator.evaluate(input_fn)
    found |= {"after": estimator.model_dir, "latest": estimator.latest_checkpoint(), "step": metrics["global_step"]}
    found |= {"loss": metrics["loss"], "examples": metrics["examples"], "trained": estimator.last_training.examples}
    errors = X[:, 0] - X @ estimator.get_variable_value("w")
    found["expected"] = float((errors**2).mean())
    with open(f"{out}/{hvd.rank()}.json", "w") as file:
        json.dump(found, file)


main(*sys.argv[1:])
