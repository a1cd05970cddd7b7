"""A program written for tf.estimator, with nothing but its imports changed."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.ranks import distributed

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
    distributed.init()
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

    class Receiver:
        features = receiver_tensors = None

    def serving_input_receiver_fn():
        Receiver.features = Receiver.receiver_tensors = {"x": tf1.placeholder(tf.float32, [None, 3])}
        return Receiver

    path = estimator.export_saved_model(str(tmp_path / "export"), serving_input_receiver_fn)
    x = next(iter(input_fn("eval", {"width": 3})))[0]["x"]
    served = tf.saved_model.load(path).signatures["serving_default"](x=x)["probability"]
    np.testing.assert_allclose(served.numpy(), predictions[:32], atol=1e-6)


def test_a_spec_without_what_its_mode_needs_is_refused():
    with pytest.raises(ValueError, match="needs loss and train_op"):
        tf_estimator.EstimatorSpec(tf_estimator.ModeKeys.TRAIN)
