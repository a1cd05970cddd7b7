"""A program of TensorFlow 1 that starts nothing by hand; argument: a directory for what each rank finds.

It says `disable_v2_behavior`, as programs of that time do, and never calls `distributed.init`.
"""

import json
import logging
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.models.layers.cross import cross
from ctr_trainer.models.layers.mlp import dense, mlp
from ctr_trainer.models.layers.normalization import batch_norm
from ctr_trainer.system.messages.errors import UserError

X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)


class Warnings(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def model_fn(features, labels, mode, params):
    hidden = cross(features["x"], 2)
    hidden = mlp([hidden, features["x"]], (8, 4))
    if params["batch_norm"]:
        hidden = batch_norm(hidden, mode == tf_estimator.ModeKeys.TRAIN)
    logits = dense(hidden, 1, "logits")[:, 0]
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_sum(each) if params["is_sum"] else tf.reduce_mean(each)
    train_op = None
    if mode == tf_estimator.ModeKeys.TRAIN:
        optimizer = tf_estimator.DistributedOptimizer(tf.train.AdagradOptimizer(0.1))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf_estimator.EstimatorSpec(mode, {"logits": logits}, loss, train_op)


def whole(batch_size=8):
    """The same batches on every rank."""
    labels = (X[:, 0] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": X}, labels)).batch(batch_size)


def by_context(input_context):
    """This rank's share of each batch."""
    size = input_context.get_per_replica_batch_size(8)
    labels = (X[:, 0] > 0).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(({"x": X}, labels))
    return data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id).batch(size)


def train(directory, input_fn, is_sum=False, batch_norm=False, **config):
    """The loss on all examples that training ends with; the text of the error that it ends with."""
    run = tf_estimator.RunConfig(threads=1, **config)
    params = {"is_sum": is_sum, "batch_norm": batch_norm}
    estimator = tf_estimator.Estimator(model_fn, directory, params=params, config=run)
    try:
        estimator.train(input_fn)
    except UserError as error:
        return str(error)
    return estimator.evaluate(whole)["loss"]


def uneven():
    """Of two ranks, one has 20 examples and the other one 9."""
    begin, end = (20 * tf_estimator.rank(), 20 if tf_estimator.rank() < tf_estimator.size() - 1 else 29)
    labels = (X[begin:end, 0] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": X[begin:end]}, labels)).batch(8)


def train_in_a_directory_of_rank_0(directory):
    """What a rank knows of a training whose directory only rank 0 names, and of its evaluation."""
    named = directory if tf_estimator.rank() == 0 else None
    config = tf_estimator.RunConfig(model_dir=named, threads=1)
    params = {"is_sum": False, "batch_norm": False}
    estimator = tf_estimator.Estimator(model_fn, named, params=params, config=config)
    found = {"before": estimator.model_dir}
    estimator.train(by_context, max_steps=2)
    found |= {"after": estimator.model_dir, "latest": estimator.latest_checkpoint()}
    return found | {name: estimator.evaluate(uneven)[name] for name in ("loss", "examples")}


def main(out):
    tf.disable_v2_behavior()
    warnings = Warnings()
    logging.getLogger("ctr_trainer").addHandler(warnings)
    found = {"whole": train(f"{out}/whole", whole)}
    found["allowed"] = train(f"{out}/allowed", whole, equal_inputs="allow")
    found["context"] = train(f"{out}/context", by_context)
    found["normed"] = train(f"{out}/normed", by_context, batch_norm=True)
    found["sum"] = train(f"{out}/sum", by_context, is_sum=True)
    found["warnings"] = list(warnings.texts)
    found["directory"] = train_in_a_directory_of_rank_0(f"{out}/directory")
    with open(f"{out}/{tf_estimator.rank()}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
