"""DIN on click histories, by tf.estimator of TensorFlow 1.15: epochs of training and evaluation in turn."""

import argparse
import json
import os
import pickle

import numpy as np
import tensorflow.compat.v1 as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.models.layers.mlp import dense

tf.estimator = tf_estimator

ATTENTION_UNITS = (16, 8)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True, help="pickle of (train, test, number of items, of categories)")
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--embedding_dim", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=0.5)
    return parser.parse_args()


def input_fn(examples, batch_size):
    def generate():
        for history, item, label in examples:
            yield {"history": history, "length": len(history), "item": item}, label

    types = ({"history": tf.int32, "length": tf.int32, "item": tf.int32}, tf.float32)
    shapes = (
        {"history": tf.TensorShape([None]), "length": tf.TensorShape([]), "item": tf.TensorShape([])},
        tf.TensorShape([]),
    )
    dataset = tf.data.Dataset.from_generator(generate, types, shapes)
    dataset = dataset.shard(tf_estimator.size(), tf_estimator.rank())
    dataset = dataset.padded_batch(batch_size // tf_estimator.size(), shapes)
    return dataset.prefetch(1)


def attention(queries, keys, lengths):
    """Weighted sum of the history's vectors by what they say of the item."""
    hidden = queries.get_shape().as_list()[-1]
    queries = tf.tile(queries, [1, tf.shape(keys)[1]])
    queries = tf.reshape(queries, [-1, tf.shape(keys)[1], hidden])
    din_all = tf.concat([queries, keys, queries - keys, queries * keys], axis=-1)
    din_all = tf.reshape(din_all, [-1, 4 * hidden])
    for i, units in enumerate(ATTENTION_UNITS):
        din_all = tf.nn.sigmoid(dense(din_all, units, "f%d_att" % i))
    outputs = tf.reshape(dense(din_all, 1, "f_att"), [-1, 1, tf.shape(keys)[1]])
    masks = tf.expand_dims(tf.sequence_mask(lengths, tf.shape(keys)[1]), 1)
    outputs = tf.where(masks, outputs, tf.ones_like(outputs) * (-(2.0**32) + 1))
    outputs = tf.nn.softmax(outputs / (hidden**0.5))
    return tf.squeeze(tf.matmul(outputs, keys), axis=1)


def model_fn(features, labels, mode, params):
    dim = params["embedding_dim"]
    initializer = tf.random_uniform_initializer(-0.1, 0.1, seed=1)
    item_table = tf.get_variable("item_emb", [params["items"], dim // 2], initializer=initializer)
    category_table = tf.get_variable("category_emb", [params["categories"], dim // 2], initializer=initializer)
    item_bias = tf.get_variable("item_b", [params["items"]], initializer=tf.zeros_initializer())
    category_of = tf.constant(params["category_of"], tf.int32)

    def embed(ids):
        categories = tf.gather(category_of, ids)
        return tf.concat(
            [tf.nn.embedding_lookup(item_table, ids), tf.nn.embedding_lookup(category_table, categories)], axis=-1
        )

    item = embed(features["item"])
    with tf.variable_scope("attention"):
        interest = attention(item, embed(features["history"]), features["length"])
    hidden = tf.concat([interest, item, interest * item], axis=-1)
    for i, units in enumerate((32, 16)):
        hidden = tf.nn.relu(dense(hidden, units, "f%d" % i))
    logits = dense(hidden, 1, "f_out")[:, 0] + tf.gather(item_bias, features["item"])
    probabilities = tf.sigmoid(logits)

    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"probability": probabilities})
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(
            mode,
            loss=loss,
            predictions={"probability": probabilities},
            eval_metric_ops={
                "AUC": tf.metrics.auc(labels, probabilities, num_thresholds=2000),
                "accuracy": tf.metrics.accuracy(labels, tf.round(probabilities)),
            },
        )
    global_step = tf.train.get_or_create_global_step()
    learning_rate = tf.train.exponential_decay(params["learning_rate"], global_step, 100, 0.9)
    optimizer = tf_estimator.DistributedOptimizer(tf.train.GradientDescentOptimizer(learning_rate))
    trainable = tf.trainable_variables()
    gradients, variables = zip(*optimizer.compute_gradients(loss, trainable))
    clipped, norm = tf.clip_by_global_norm(gradients, 5.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables), global_step=global_step)
    tf.summary.scalar("gradient_norm", norm)
    logging = tf.train.LoggingTensorHook({"loss": loss, "rate": learning_rate}, every_n_iter=50)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[logging])


def main():
    arguments = parse_arguments()
    with open(arguments.dataset, "rb") as file:
        train, test, items, category_of = pickle.load(file)
    config = tf.estimator.RunConfig(
        model_dir=arguments.model_dir, seed=1, save_checkpoints_steps=50, keep_checkpoint_max=2
    )
    params = {
        "items": items,
        "categories": int(np.max(category_of)) + 1,
        "category_of": category_of,
        "embedding_dim": arguments.embedding_dim,
        "learning_rate": arguments.learning_rate,
    }
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
    for _ in range(arguments.epochs):
        estimator.train(lambda: input_fn(train, arguments.batch_size))
        metrics = estimator.evaluate(lambda: input_fn(test, arguments.batch_size))
    print(json.dumps({"loss": float(metrics["loss"]), "auc": float(metrics["AUC"])}))
    best = sorted(name for name in estimator.get_variable_names() if name.startswith("f_out"))
    assert estimator.get_variable_value(best[0]).size, os.listdir(arguments.model_dir)


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    main()
