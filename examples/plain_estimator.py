"""A program of tf.estimator's kind, on any number of workers; only its imports and its optimizer's line have changed.

Example: horovodrun -np 2 python examples/plain_estimator.py --model_dir=/tmp/plain
"""

import argparse
import json
import sys

import numpy as np
import tensorflow as tf

import ctr_trainer as ctr

tf1 = tf.compat.v1
CITIES = 50


def examples(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns features and clicks: ({"x": float32[rows, 8], "city": int64[rows]}, float32[rows])."""
    draw, taste = np.random.default_rng(seed), np.random.default_rng(7).normal(size=CITIES)
    x, city = draw.normal(size=(rows, 8)).astype(np.float32), draw.integers(0, CITIES, rows)
    clicks = draw.random(rows) < 1 / (1 + np.exp(1 - x[:, 0] - taste[city]))
    return {"x": x, "city": city}, clicks.astype(np.float32)


def input_fn(flags: argparse.Namespace, rows: int, seed: int, epochs: int) -> tf.data.Dataset:
    # Each worker reads its share, in batches that are of the same size together whatever the number of workers.
    dataset = tf.data.Dataset.from_tensor_slices(examples(rows, seed)).shard(ctr.size(), ctr.rank())
    return dataset.batch(flags.batch_size // ctr.size()).repeat(epochs)


def model_fn(features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, params: dict) -> ctr.EstimatorSpec:
    bias = tf1.get_variable("city", [CITIES, 1], initializer=tf1.zeros_initializer())
    hidden = tf.nn.relu(tf.matmul(features["x"], tf1.get_variable("hidden", [8, 16])))
    logits = tf.matmul(hidden, tf1.get_variable("logits", [16, 1])) + tf.gather(bias, features["city"])
    predictions = {"logits": logits[:, 0], "probabilities": tf.sigmoid(logits)[:, 0]}
    if mode == ctr.ModeKeys.PREDICT:
        return ctr.EstimatorSpec(mode, predictions)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits[:, 0]))
    # Was: train_op=optimizer.minimize(loss, global_step). The rate is of the whole batch, so it stays as it is.
    optimizer = tf1.train.AdagradOptimizer(params["learning_rate"]) if mode == ctr.ModeKeys.TRAIN else None
    return ctr.EstimatorSpec(mode, predictions, loss, optimizer=optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_dir", required=True, help="where checkpoints and summaries go")
    parser.add_argument("--batch_size", type=int, default=256, help="examples of a step, of all workers together")
    flags = parser.parse_args()
    ctr.init()
    ctr.install_log()
    config = ctr.RunConfig(save_checkpoints_steps=100, threads=1)
    estimator = ctr.Estimator(model_fn, flags.model_dir, {"learning_rate": 0.1}, config)
    train = ctr.TrainSpec(lambda: input_fn(flags, 25_600, 0, 2))
    evaluation = ctr.EvalSpec(lambda: input_fn(flags, 5_120, 1, 1), every_n_steps=50)
    metrics, _ = ctr.train_and_evaluate(estimator, train, evaluation)
    if metrics is not None and ctr.is_chief():
        print(json.dumps({name: metrics[name] for name in ("global_step", "loss", "auc")}))


if __name__ == "__main__":
    sys.exit(ctr.run_program(main))
