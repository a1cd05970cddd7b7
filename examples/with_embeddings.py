"""A model_fn of one's own, whose embeddings live in the embedding service.

Example: python -m ctr_trainer convert --format=synthetic --rows=200000 --output=/tmp/clicks
         horovodrun -np 2 python examples/with_embeddings.py --data=/tmp/clicks --model_dir=/tmp/embeddings
"""

import argparse
import dataclasses
import json
import os
import sys
from typing import Any

import tensorflow as tf

import ctr_trainer as ctr

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params:
    train_op: ctr.TrainOp = ctr.TrainOp("adagrad", learning_rate=0.02, embedding_learning_rate=0.05)
    hidden_units: int = 64


def model_fn(features: Any, labels: tf.Tensor, mode: str, params: Params) -> ctr.EstimatorSpec:
    # The rows that the batch looks up, float32[batch, features, dim], and the features that are numbers.
    rows, numbers, weight = features["embedding"], features["dense"], features["weight"]
    inputs = tf.concat([tf.reshape(rows, [-1, rows.shape[1] * rows.shape[2]]), numbers], 1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf1.get_variable("hidden", [inputs.shape[1], params.hidden_units])))
    logits = tf.matmul(hidden, tf1.get_variable("logits", [params.hidden_units, 1]))[:, 0]
    predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
    if mode == ctr.ModeKeys.PREDICT:
        return ctr.EstimatorSpec(mode, predictions)
    # The last batches of a worker are padded with examples of weight 0, so that all workers make as many steps.
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))
    # One backward pass for both: the dense variables' gradients go through Horovod, the rows' to the service.
    return ctr.EstimatorSpec(
        mode, predictions, loss, params.train_op(loss, features) if mode == ctr.ModeKeys.TRAIN else None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="what convert wrote: its directories train and test")
    parser.add_argument("--model_dir", required=True, help="where checkpoints and summaries go")
    flags = parser.parse_args()
    ctr.init()
    ctr.install_log()
    share: dict[str, Any] = dict(batch_size=1024, rank=ctr.rank(), size=ctr.size(), epochs=1)
    config = ctr.RunConfig(threads=1, embedding=ctr.EmbeddingConfig(service="auto", sync_steps=30))
    estimator = ctr.Estimator(model_fn, flags.model_dir, Params(), config, name="with_embeddings")
    train, test = (os.path.join(flags.data, part) for part in ("train", "test"))
    estimator.train(lambda position: ctr.BatchReader(train, position=position, **share))
    metrics = estimator.evaluate(lambda: ctr.BatchReader(test, shuffle=False, **share))
    if ctr.is_chief():
        print(json.dumps({name: metrics[name] for name in ("global_step", "examples", "loss", "auc")}))


if __name__ == "__main__":
    sys.exit(ctr.run_program(main))
