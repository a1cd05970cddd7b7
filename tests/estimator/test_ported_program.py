"""A program written for tf.estimator, with nothing but its imports changed."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import estimator as tf_estimator

tf1 = tf.compat.v1


def model_fn(features, labels, mode, params):
    logits = tf.reduce_sum(
        features["x"] * tf1.get_variable("w", [params["width"]], initializer=tf1.zeros_initializer()), 1
    )
    predictions = {"probability": tf.sigmoid(logits)}
    if mode == tf_estimator.ModeKeys.PREDICT:
        return tf_estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf1.metrics.accuracy(labels, tf.cast(logits > 0, tf.float32))
    if mode == tf_estimator.ModeKeys.EVAL:
        return tf_estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    train_op = tf1.train.GradientDescentOptimizer(1.0).minimize(loss, tf1.train.get_global_step())
    return tf_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(mode, params):
    x = np.random.default_rng(0).normal(size=(256, params["width"])).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, (x[:, 0] > 0).astype(np.float32))).batch(32)
    return dataset.repeat() if mode == tf_estimator.ModeKeys.TRAIN else dataset


def test_trains_evaluates_predicts_exports_and_goes_on(tmp_path):
    estimator = tf_estimator.Estimator(model_fn, str(tmp_path / "model"), params={"width": 3})
    estimator.train(input_fn, steps=50)
    first = estimator.evaluate(input_fn)
    assert first["global_step"] == 50
    assert first["accuracy"] > 0.9
    estimator.train(input_fn, max_steps=80)
    second = estimator.evaluate(input_fn)
    assert second["global_step"] == 80
    assert second["loss"] < first["loss"]

    predictions = [p["probability"] for p in estimator.predict(input_fn)]
    assert len(predictions) == 256

    receive = tf_estimator.export.build_raw_serving_input_receiver_fn({"x": tf1.placeholder(tf.float32, [None, 3])})
    path = estimator.export_saved_model(str(tmp_path / "export"), receive)
    x = np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32)
    served = served_by(path, {"x": x[:32]})
    np.testing.assert_allclose(served["probability"], predictions[:32], atol=1e-6)


def served_by(path, inputs, signature="serving_default"):
    """What a SavedModel answers."""
    with tf.Graph().as_default(), tf1.Session() as session:
        found = tf1.saved_model.load(session, [tf.saved_model.SERVING], path).signature_def[signature]
        feed = {found.inputs[name].name: value for name, value in inputs.items()}
        return session.run({name: tensor.name for name, tensor in found.outputs.items()}, feed)


def test_a_spec_without_what_its_mode_needs_is_refused():
    with pytest.raises(ValueError, match="needs loss and train_op"):
        tf_estimator.EstimatorSpec(tf_estimator.ModeKeys.TRAIN)
