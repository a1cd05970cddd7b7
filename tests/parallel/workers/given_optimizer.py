"""Trains programs of tf.estimator's kind by the optimizers that they give; argument: a directory for what each became.

With two workers rank 0 has two examples of each step, and rank 1 one; a lone worker has all three.
"""

import functools
import json
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from ctr_trainer.estimator import DistributedOptimizer, Estimator, EstimatorSpec, ModeKeys, RunConfig
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
STEPS = 20
EXAMPLES = np.random.default_rng(0).normal(size=(STEPS, 3, 4)).astype(np.float32)
MINE = {1: [slice(0, 3)], 2: [slice(0, 2), slice(2, 3)]}


def input_fn():
    mine = MINE[distributed.size()][distributed.rank()]

    def batches():
        for x in EXAMPLES:
            yield {"x": x[mine]}, (x[mine, 0] > 0).astype(np.float32)

    signature = ({"x": tf.TensorSpec([None, 4], tf.float32)}, tf.TensorSpec([None], tf.float32))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def model_fn(features, labels, mode, params):
    w = tf1.get_variable("w", [4, 1], initializer=tf1.constant_initializer(0.1))
    logits = tf.matmul(features["x"], w)[:, 0]
    if params["how"] in ("sparse", "partial", "grouped"):
        rows = tf1.get_variable("rows", [8], initializer=tf1.zeros_initializer())
        logits += tf.gather(rows, tf.cast(tf.abs(features["x"][:, 1]) * 3, tf.int32) % 8)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    step = tf1.train.get_global_step()
    train = {
        "given": lambda: {"optimizer": params["make"]()},
        "sparse": lambda: {"optimizer": params["make"]()},
        "minimized": lambda: {"train_op": params["make"]().minimize(loss, step)},
        "partial": lambda: {"train_op": wide_and_deep(params["make"], loss, step, [w], [rows], lambda own: own)},
        "grouped": lambda: {"train_op": wide_and_deep(params["make"], loss, step, [w], [rows], DistributedOptimizer)},
        "beside": lambda: {
            "train_op": DistributedOptimizer(params["make"]()).minimize(loss, step),
            "training_hooks": [Beside(params["make"]().minimize(loss))],
        },
    }
    return EstimatorSpec(mode, loss=loss, **(train[params["how"]]() if mode == ModeKeys.TRAIN else {}))


def wide_and_deep(make, loss, step, wide, deep, wrap):
    """Returns the train_op of two optimizers, of which the first exchanges its gradients."""
    first = hvd.DistributedOptimizer(make()).minimize(loss, step, var_list=wide)
    return tf.group(first, wrap(make()).minimize(loss, var_list=deep))


class Beside(tf1.train.SessionRunHook):
    """Runs an operation with each step, which nobody sees in the train_op."""

    def __init__(self, operation):
        self._operation = operation

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._operation)


def train(directory, make, how="given", exchange="horovod"):
    """Trains, and returns the final variable w, or the text of the error."""
    estimator = Estimator(
        model_fn, directory, {"make": make, "how": how}, RunConfig(threads=1, dense_exchange=exchange)
    )
    try:
        estimator.train(input_fn)
    except UserError as error:
        return str(error)
    if not distributed.is_chief():
        return None
    load = functools.partial(tf.train.load_variable, tf.train.latest_checkpoint(directory))
    return load("w")[:, 0].tolist() + (load("rows").tolist() if how == "sparse" else [])


def main(out):
    distributed.init()
    adagrad = lambda: tf1.train.AdagradOptimizer(0.5)  # noqa: E731
    adam = lambda: tf1.train.AdamOptimizer(0.1)  # noqa: E731
    found = {name: train(f"{out}/{name}", make, exchange="auto") for name, make in (("auto", adagrad), ("adam", adam))}
    found["sparse"] = train(f"{out}/sparse", adagrad, "sparse", exchange="auto")
    found["horovod"] = train(f"{out}/horovod", adagrad)
    found["lone"] = train(f"{out}/lone", adagrad, "minimized")
    found["distributed"] = train(f"{out}/distributed", lambda: hvd.DistributedOptimizer(adagrad()), "minimized")
    several = lambda: hvd.DistributedOptimizer(adagrad(), backward_passes_per_step=2)  # noqa: E731
    found["aggregated"] = train(f"{out}/aggregated", several, "minimized")
    for how in ("partial", "grouped", "beside"):
        found[how] = train(f"{out}/{how}", adagrad, how)
    found["twice"] = train(f"{out}/twice", lambda: hvd.DistributedOptimizer(adagrad()))
    found["keras"] = train(f"{out}/keras", tf.keras.optimizers.Adagrad)
    with open(f"{out}/{distributed.rank()}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
