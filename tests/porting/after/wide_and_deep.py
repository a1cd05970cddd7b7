"""Wide and deep with feature columns, by tf.estimator of TensorFlow 1.15: two optimizers, exporters, warm start."""

import argparse
import json
import sys

import tensorflow.compat.v1 as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.models.layers.mlp import dense

tf.estimator = tf_estimator

COLUMNS = ["age", "hours", "education", "occupation", "first_ad", "second_ad", "tags", "clicked"]
DEFAULTS = [[0.0], [0.0], [""], [""], [""], [""], [""], [0]]

parser = argparse.ArgumentParser()
parser.add_argument("--train_data", required=True)
parser.add_argument("--test_data", required=True)
parser.add_argument("--model_dir", required=True)
parser.add_argument("--warm_start_from", default=None)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--train_epochs", type=int, default=4)
FLAGS = None


def build_columns():
    """Returns the columns of the wide part and of the deep part."""
    fc = tf.feature_column
    age, hours = fc.numeric_column("age"), fc.numeric_column("hours")
    age_buckets = fc.bucketized_column(age, boundaries=[20, 30, 40, 50, 60])
    education = fc.categorical_column_with_vocabulary_list("education", ["school", "college", "bachelor", "master"])
    occupation = fc.categorical_column_with_hash_bucket("occupation", hash_bucket_size=50)
    first_ad = fc.categorical_column_with_hash_bucket("first_ad", hash_bucket_size=30)
    second_ad = fc.categorical_column_with_hash_bucket("second_ad", hash_bucket_size=30)
    tags = fc.weighted_categorical_column(fc.categorical_column_with_hash_bucket("tags", 20), "tag_weights")
    crossed = fc.crossed_column([age_buckets, "education"], hash_bucket_size=100)
    wide = [age_buckets, education, occupation, crossed, fc.crossed_column(["education", "occupation"], 200)]
    ads = fc.shared_embedding_columns([first_ad, second_ad], dimension=4, initializer=uniform(1))
    deep = [
        age,
        hours,
        fc.indicator_column(education),
        fc.embedding_column(occupation, dimension=8, initializer=uniform(2)),
        fc.embedding_column(tags, dimension=4, combiner="sum", initializer=uniform(3)),
    ]
    return wide, deep + ads


def uniform(seed):
    return tf.random_uniform_initializer(-0.1, 0.1, seed=seed)


def parse_csv(lines):
    features = dict(zip(COLUMNS, tf.decode_csv(lines, record_defaults=DEFAULTS)))
    clicked = tf.to_float(features.pop("clicked"))
    tags = tf.string_split(features.pop("tags"), " ")
    pairs = tf.reshape(tf.string_split(tags.values, ":").values, [-1, 2])
    features["tags"] = tf.SparseTensor(tags.indices, pairs[:, 0], tags.dense_shape)
    features["tag_weights"] = tf.SparseTensor(tags.indices, tf.string_to_number(pairs[:, 1]), tags.dense_shape)
    return features, clicked


def input_fn(data_file, num_epochs, batch_size):
    dataset = tf.data.TextLineDataset(data_file).repeat(num_epochs)
    dataset = dataset.shard(tf_estimator.size(), tf_estimator.rank()).batch(batch_size // tf_estimator.size())
    return dataset.map(parse_csv, num_parallel_calls=2)


def model_fn(features, labels, mode, params):
    wide_columns, deep_columns = build_columns()
    with tf.variable_scope("wide"):
        wide_logits = tf.feature_column.linear_model(features, wide_columns)
    with tf.variable_scope("deep"):
        hidden = tf.feature_column.input_layer(features, deep_columns)
        for i, units in enumerate(params["hidden_units"]):
            hidden = tf.nn.relu(dense(hidden, units, "hidden_%d" % i))
        deep_logits = dense(hidden, 1, "logits")
    logits = (wide_logits + deep_logits)[:, 0]
    predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {
            "predict": tf.estimator.export.PredictOutput(predictions),
            "serving_default": tf.estimator.export.ClassificationOutput(scores=predictions["probabilities"][:, None]),
            "regression": tf.estimator.export.RegressionOutput(value=predictions["probabilities"]),
        }
        return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)

    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    accuracy = tf.metrics.accuracy(labels, tf.round(predictions["probabilities"]))
    tf.summary.scalar("accuracy", accuracy[1])
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, predictions, loss, eval_metric_ops={"accuracy": accuracy})

    wide_variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="wide")
    deep_variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="deep")
    wide_optimizer = tf.train.FtrlOptimizer(0.05, l1_regularization_strength=0.001)
    deep_optimizer = tf.train.AdagradOptimizer(0.05)
    train_op = tf.group(
        tf_estimator.DistributedOptimizer(wide_optimizer).minimize(loss, var_list=wide_variables),
        tf_estimator.DistributedOptimizer(deep_optimizer).minimize(loss, var_list=deep_variables),
    )
    with tf.control_dependencies([train_op]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


def serving_input_receiver_fn():
    wide, deep = build_columns()
    return tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(wide + deep)
    )()


def main(unused_argv):
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir, seed=5, save_checkpoints_steps=20, summary_steps=20)
    model = tf.estimator.Estimator(
        model_fn, config=config, params={"hidden_units": [32, 16]}, warm_start_from=FLAGS.warm_start_from
    )
    train_spec = tf.estimator.TrainSpec(
        lambda: input_fn(FLAGS.train_data, FLAGS.train_epochs, FLAGS.batch_size), max_steps=1000
    )
    exporters = [
        tf.estimator.BestExporter("best", serving_input_receiver_fn, exports_to_keep=1),
        tf.estimator.LatestExporter("latest", serving_input_receiver_fn, exports_to_keep=2),
        tf.estimator.FinalExporter("final", serving_input_receiver_fn),
    ]
    eval_spec = tf.estimator.EvalSpec(
        lambda: input_fn(FLAGS.test_data, 1, FLAGS.batch_size),
        steps=None,
        exporters=exporters,
        start_delay_secs=0,
        throttle_secs=0,
    )
    metrics, _ = tf.estimator.train_and_evaluate(model, train_spec, eval_spec)
    print(json.dumps({"loss": float(metrics["loss"]), "accuracy": float(metrics["accuracy"])}))


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    FLAGS, unparsed = parser.parse_known_args()
    tf.app.run(main=main, argv=[sys.argv[0]] + unparsed)
