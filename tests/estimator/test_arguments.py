"""Arguments and return values of programs: what is refused, by which sentence, and what `train` and others return."""

import re

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def input_fn():
    labels = (X[:, 0] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": X}, labels)).batch(8)  # Of 8, 8 and 4 examples.


def no_input():
    return input_fn().take(0)


def model_fn(features, labels, mode, params):
    w = tf1.get_variable("w", [3], initializer=tf1.zeros_initializer())
    logits = tf.reduce_sum(features["x"] * w, 1)
    if mode == tf_estimator.ModeKeys.PREDICT:
        return tf_estimator.EstimatorSpec(mode, predictions={"score": logits})
    error = labels - logits
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(error**2), tf1.train.get_global_step())
    metrics = {"error": tf1.metrics.mean(error)} if mode == tf_estimator.ModeKeys.EVAL else None
    return tf_estimator.EstimatorSpec(mode, loss=tf.reduce_mean(error**2), train_op=train_op, eval_metric_ops=metrics)


def make(path, given=model_fn, **config):
    return tf_estimator.Estimator(given, str(path), config=tf_estimator.RunConfig(threads=1, **config))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make(tmp_path_factory.mktemp("trained")).train(input_fn)


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_of_steps_that_are_not_above_0_are_refused(trained, number):
    for call, name in (
        (lambda: trained.evaluate(input_fn, steps=number), "steps"),
        (lambda: trained.train(input_fn, steps=number), "steps"),
        (lambda: trained.train(input_fn, max_steps=number), "max_steps"),
        (lambda: tf_estimator.TrainSpec(input_fn, max_steps=number), "max_steps"),
    ):
        with pytest.raises(UserError, match=f"^{name}={number}: expected a number above 0"):
            call()
    with pytest.raises(UserError, match=r"throttle_secs=-1\): expected 0 or more seconds"):
        tf_estimator.EvalSpec(input_fn, throttle_secs=-1)


def test_an_input_without_examples_is_refused_by_each_use(trained, tmp_path):
    with pytest.raises(UserError, match="no examples to evaluate"):
        trained.evaluate(no_input)
    for _ in range(2):  # Also when the first attempt has left a checkpoint.
        with pytest.raises(UserError, match="no examples to train on"):
            make(tmp_path / "new").train(no_input)
    with pytest.raises(UserError, match="no examples to evaluate"):
        tf_estimator.train_and_evaluate(
            make(tmp_path / "evaluated"), tf_estimator.TrainSpec(input_fn), tf_estimator.EvalSpec(no_input)
        )


def test_the_loss_and_own_metrics_are_means_over_examples_and_not_over_batches(trained):
    metrics = trained.evaluate(input_fn)
    errors = (X[:, 0] > 0) - X @ trained.get_variable_value("w")
    assert metrics["loss"] == pytest.approx((errors**2).mean(), rel=1e-5)
    assert metrics["error"] == pytest.approx(errors.mean(), rel=1e-4)
    assert metrics.examples == 20


def test_train_returns_the_estimator_and_counts_the_examples_of_a_dataset(tmp_path):
    estimator = make(tmp_path / "model")
    assert estimator.train(input_fn, max_steps=2).evaluate(input_fn)["global_step"] == 2
    assert (estimator.last_training.steps, estimator.last_training.examples) == (2, 16)
    assert estimator.latest_checkpoint().examples == 16
    assert estimator.train(input_fn, max_steps=2).last_training is None  # There was nothing to do.


def test_the_latest_checkpoint_is_a_path_with_attributes(trained):
    found = trained.latest_checkpoint()
    assert isinstance(found, str) and isinstance(found, Checkpoint)
    assert found == found.path and found.endswith(f"step-{found.step:010d}")
    assert int(found.split("-")[-1]) == found.step == 3
    assert tf1.train.load_checkpoint(found).get_tensor("w") == pytest.approx(trained.get_variable_value("w"))
    assert trained.evaluate(input_fn, checkpoint_path=found)["global_step"] == 3


def _returning(value):
    return lambda features, labels, mode, params: value


def _unknown(features, labels, mode, params, confg):
    raise AssertionError


HOOKS = [tf1.train.StopAtStepHook(2), [print], [tf1.train.StopAtStepHook]]
REFUSED = [
    (lambda path: tf_estimator.RunConfig(save_checkpoint_steps=5), "did you mean save_checkpoints_steps"),
    (lambda path: tf_estimator.RunConfig().replace(save_checkpoint_steps=5), "did you mean save_checkpoints_steps"),
    (lambda path: tf_estimator.EmbeddingConfig(sync_step=5), "did you mean sync_steps"),
    (lambda path: tf_estimator.EvalSpec(input_fn, everyn_steps=5), "did you mean every_n_steps"),
    (lambda path: tf_estimator.TrainSpec(input_fn, max_step=5), "did you mean max_steps"),
    (lambda path: tf_estimator.EstimatorSpec("train", los=5), "did you mean loss"),
    (lambda path: tf_estimator.Estimator(model_fn, path, parms={}), "did you mean params"),
    *((lambda path, h=each: make(path).train(input_fn, h), "^hooks=.*expected a list of session") for each in HOOKS),
    (lambda path: tf_estimator.EstimatorSpec("infer", 0, prediction_hooks=[3]), r"^prediction_hooks=\[3\]: expected"),
    (lambda path: tf_estimator.EvalSpec(input_fn, hooks=3), "^hooks=3: expected"),
    (lambda path: make(path).train(lambda: None), "^input_fn returned None: expected a tf.data.Dataset"),
    (lambda path: make(path).train(lambda: (1, 2, 3)), "^input_fn returned a tuple of 3"),
    (lambda path: make(path).train(input_fn()), "^input_fn is _BatchDataset: expected a function"),
    (lambda path: make(path).train(lambda parms: 0), "'parms', which is not one of mode.*did you mean params"),
    (lambda path: make(path, _returning(None)).train(input_fn), "^model_fn returned NoneType for mode 'train'"),
    (lambda path: make(path, _returning((1, 2))).train(input_fn), "^model_fn returned tuple"),
    (lambda path: make(path, _unknown).train(input_fn), "'confg', which is not one of labels.*did you mean config"),
    (lambda path: make(path, 3), "^model_fn is int: expected a function"),
]


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_a_wrong_argument_or_return_value_is_refused_by_a_sentence(at, tmp_path):
    call, message = REFUSED[at]
    with pytest.raises(UserError) as error:
        call(str(tmp_path / "model"))
    assert re.search(message, str(error.value))


def test_hooks_that_the_input_or_the_model_does_not_use_may_be_none(trained):
    assert trained.evaluate(input_fn, hooks=None).global_step == 3
    assert len(list(trained.predict(lambda: input_fn().map(lambda x, y: x), hooks=None))) == 20
