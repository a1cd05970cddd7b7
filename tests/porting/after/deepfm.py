"""DeepFM on libsvm files, by tf.estimator of TensorFlow 1.15: train, evaluate, predict and export."""

import glob
import json
import os

import tensorflow.compat.v1 as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.models.layers.mlp import dense

tf.estimator = tf_estimator

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", "", "directory of tr*.libsvm, va*.libsvm and te*.libsvm")
flags.DEFINE_string("model_dir", "", "directory of the checkpoints")
flags.DEFINE_string("servable_dir", "", "directory of the exports")
flags.DEFINE_integer("num_threads", 2, "threads of a worker")
flags.DEFINE_integer("feature_size", 200, "number of features")
flags.DEFINE_integer("field_size", 5, "number of fields")
flags.DEFINE_integer("embedding_size", 8, "width of an embedding")
flags.DEFINE_integer("batch_size", 64, "examples of a step")
flags.DEFINE_integer("num_epochs", 3, "epochs")
flags.DEFINE_integer("log_steps", 20, "steps between lines of the log")
flags.DEFINE_float("learning_rate", 0.02, "learning rate")
flags.DEFINE_float("l2_reg", 0.0001, "L2 regularization of the embeddings")
flags.DEFINE_string("deep_layers", "32,16", "widths of the layers")


def input_fn(filenames, batch_size, num_epochs=1):
    def decode_libsvm(line):
        columns = tf.string_split([line], " ")
        labels = tf.string_to_number(columns.values[0], out_type=tf.float32)
        splits = tf.string_split(columns.values[1:], ":")
        id_vals = tf.reshape(splits.values, splits.dense_shape)
        feat_ids, feat_vals = tf.split(id_vals, num_or_size_splits=2, axis=1)
        feat_ids = tf.string_to_number(feat_ids, out_type=tf.int32)
        feat_vals = tf.string_to_number(feat_vals, out_type=tf.float32)
        return {"feat_ids": feat_ids, "feat_vals": feat_vals}, labels

    dataset = tf.data.TextLineDataset(filenames).shard(tf_estimator.size(), tf_estimator.rank())
    dataset = dataset.map(decode_libsvm, num_parallel_calls=2).prefetch(1000)
    dataset = dataset.repeat(num_epochs)
    dataset = dataset.batch(batch_size // tf_estimator.size())
    return dataset.make_one_shot_iterator().get_next()


def model_fn(features, labels, mode, params):
    field_size = params["field_size"]
    feature_size = params["feature_size"]
    embedding_size = params["embedding_size"]
    layers = list(map(int, params["deep_layers"].split(",")))

    fm_b = tf.get_variable(name="fm_bias", shape=[1], initializer=tf.constant_initializer(0.0))
    fm_w = tf.get_variable(name="fm_w", shape=[feature_size], initializer=tf.zeros_initializer())
    fm_v = tf.get_variable(
        name="fm_v", shape=[feature_size, embedding_size], initializer=tf.random_normal_initializer(stddev=0.01, seed=2)
    )

    feat_ids = tf.reshape(features["feat_ids"], shape=[-1, field_size])
    feat_vals = tf.reshape(features["feat_vals"], shape=[-1, field_size])

    with tf.variable_scope("First-order"):
        feat_wgts = tf.nn.embedding_lookup(fm_w, feat_ids)
        y_w = tf.reduce_sum(tf.multiply(feat_wgts, feat_vals), 1)

    with tf.variable_scope("Second-order"):
        embeddings = tf.nn.embedding_lookup(fm_v, feat_ids)
        embeddings = tf.multiply(embeddings, tf.reshape(feat_vals, shape=[-1, field_size, 1]))
        sum_square = tf.square(tf.reduce_sum(embeddings, 1))
        square_sum = tf.reduce_sum(tf.square(embeddings), 1)
        y_v = 0.5 * tf.reduce_sum(tf.subtract(sum_square, square_sum), 1)

    with tf.variable_scope("Deep-part"):
        deep_inputs = tf.reshape(embeddings, shape=[-1, field_size * embedding_size])
        for i in range(len(layers)):
            deep_inputs = tf.nn.relu(dense(deep_inputs, layers[i], "mlp%d" % i))
        y_deep = dense(deep_inputs, 1, "deep_out")
        y_d = tf.reshape(y_deep, shape=[-1])

    with tf.variable_scope("DeepFM-out"):
        y_bias = fm_b * tf.ones_like(y_d, dtype=tf.float32)
        y = y_bias + y_w + y_v + y_d
        pred = tf.sigmoid(y)

    predictions = {"prob": pred}
    export_outputs = {
        tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: tf.estimator.export.PredictOutput(
            predictions
        )
    }
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions, export_outputs=export_outputs)

    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=y, labels=labels))
    loss += params["l2_reg"] * (tf.nn.l2_loss(fm_w) + tf.nn.l2_loss(fm_v))
    eval_metric_ops = {"auc": tf.metrics.auc(labels, pred)}
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(
            mode=mode, predictions=predictions, loss=loss, eval_metric_ops=eval_metric_ops
        )

    optimizer = tf.train.AdamOptimizer(learning_rate=params["learning_rate"], epsilon=1e-6)
    train_op = tf_estimator.DistributedOptimizer(optimizer).minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions, loss=loss, train_op=train_op)


def main(_):
    tr_files = sorted(glob.glob("%s/tr*libsvm" % FLAGS.data_dir))
    va_files = sorted(glob.glob("%s/va*libsvm" % FLAGS.data_dir))
    te_files = sorted(glob.glob("%s/te*libsvm" % FLAGS.data_dir))
    model_params = {
        "field_size": FLAGS.field_size,
        "feature_size": FLAGS.feature_size,
        "embedding_size": FLAGS.embedding_size,
        "learning_rate": FLAGS.learning_rate,
        "l2_reg": FLAGS.l2_reg,
        "deep_layers": FLAGS.deep_layers,
    }
    session_config = tf.ConfigProto(
        device_count={"GPU": 0, "CPU": FLAGS.num_threads},
        intra_op_parallelism_threads=FLAGS.num_threads,
        inter_op_parallelism_threads=FLAGS.num_threads,
    )
    config = tf.estimator.RunConfig().replace(
        session_config=session_config,
        seed=3,
        log_steps=FLAGS.log_steps,
        summary_steps=FLAGS.log_steps,
        save_checkpoints_steps=FLAGS.log_steps,
    )
    deepfm = tf.estimator.Estimator(model_fn=model_fn, model_dir=FLAGS.model_dir, params=model_params, config=config)

    train_spec = tf.estimator.TrainSpec(input_fn=lambda: input_fn(tr_files, FLAGS.batch_size, FLAGS.num_epochs))
    eval_spec = tf.estimator.EvalSpec(
        input_fn=lambda: input_fn(va_files, FLAGS.batch_size), steps=None, start_delay_secs=0, throttle_secs=0
    )
    tf.estimator.train_and_evaluate(deepfm, train_spec, eval_spec)

    metrics = deepfm.evaluate(input_fn=lambda: input_fn(va_files, FLAGS.batch_size))
    preds = deepfm.predict(input_fn=lambda: input_fn(te_files, FLAGS.batch_size), predict_keys="prob")
    probabilities = [float(prob["prob"]) for prob in preds]
    print(json.dumps({"loss": float(metrics["loss"]), "auc": float(metrics["auc"]), "predicted": len(probabilities)}))

    feature_spec = {
        "feat_ids": tf.placeholder(dtype=tf.int64, shape=[None, FLAGS.field_size], name="feat_ids"),
        "feat_vals": tf.placeholder(dtype=tf.float32, shape=[None, FLAGS.field_size], name="feat_vals"),
    }
    serving_input_receiver_fn = tf.estimator.export.build_raw_serving_input_receiver_fn(feature_spec)
    deepfm.export_savedmodel(os.path.join(FLAGS.servable_dir), serving_input_receiver_fn)


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.app.run()
