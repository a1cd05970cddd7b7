"""Workers train on a `tf.data` input; arguments: the model directory, then the batches that each rank's input has."""

import sys

import numpy as np
import tensorflow as tf

from ctr_trainer import distributed, last_words
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator_spec import EstimatorSpec

tf1 = tf.compat.v1
model_dir, *batches = sys.argv[1:]
distributed.init()


def input_fn():
    x = np.ones([8, 4], np.float32)
    return tf.data.Dataset.from_tensors(({"x": x}, x[:, 0])).repeat(int(batches[distributed.rank()]))


def model_fn(features, labels, mode, params):
    weights = tf1.get_variable("w", [4, 1], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean((tf.matmul(features["x"], weights)[:, 0] - labels) ** 2)
    optimizer = distributed.optimizer(tf1.train.GradientDescentOptimizer(0.1))
    return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tf1.train.get_global_step()))


def main():
    Estimator(model_fn, model_dir, config=RunConfig(threads=1, save_checkpoints_steps=4)).train(input_fn)


sys.exit(last_words.of_this_process().run(main))
