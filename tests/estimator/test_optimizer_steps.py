"""What a step is: micro-batches, resumed runs, regularization, learning rates by scope."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator import EmbeddingConfig, Estimator, EstimatorSpec, ModeKeys, RunConfig
from ctr_trainer.estimator.built_step import optimizer_step
from ctr_trainer.estimator.dense_optimizers import DenseUpdate
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.layers.normalization import batch_norm
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import Exchange
from ctr_trainer.settings.optimizers import Ftrl
from ctr_trainer.settings.train_settings import factors_of, parse_lr_groups
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.checkpoints import Witness, rows_by_key
from tests.constant import CONSTANT
from tests.estimator import deepfm
from tests.row_optimizers import row_optimizer

tf1 = tf.compat.v1
ROWS = 1003  # 32 batches of 32, the last of 11


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("steps"), rows=ROWS)


def _train(
    data, model_dir, batch_size, micro_batches, max_steps=None, optimizer="adagrad", rates=(0.05, 0.1), **settings
):
    """Trains, and returns (result, dense variables, rows by key, checkpoint)."""
    train_op = TrainOp(optimizer, *rates, accumulation_steps=micro_batches, **{**CONSTANT, **settings})
    embedding = EmbeddingConfig(optimizer=row_optimizer(optimizer, initial_accumulator=0.01), learning_rate=rates[1])
    config = dict(prefetch_batches=2, save_checkpoints_steps=0, embedding=embedding)
    estimator = deepfm.estimator(model_dir, train_op, (8, 4), **config)
    input_fn, witness = deepfm.batches(data, batch_size, shuffle=False, epochs=None if max_steps else 1), Witness()
    result = estimator.train(input_fn, hooks=[witness], max_steps=max_steps).last_training
    checkpoint = estimator.latest_checkpoint()
    return result, witness.dense, rows_by_key(checkpoint), checkpoint


def _assert_equal(one, other):
    (_, dense, rows, _), (_, expected_dense, expected_rows, _) = one, other
    assert dense.keys() == expected_dense.keys()
    for name, value in expected_dense.items():
        np.testing.assert_allclose(dense[name], value, atol=1e-5, rtol=0, err_msg=name)
    assert rows.keys() == expected_rows.keys()
    for key, row in expected_rows.items():
        np.testing.assert_allclose(rows[key], row, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    return _train(data, tmp_path_factory.mktemp("whole"), 32, 1)


def test_micro_batches_train_as_the_one_batch_that_they_are_together(data, tmp_path, whole):
    """The last step has 11 examples: of its four micro-batches of 8 one is whole, one has 3, and two are added."""
    found = _train(data, tmp_path, 8, 4)
    _assert_equal(found, whole)
    assert found[0]["steps"] == whole[0]["steps"] == found[1]["global_step"] == 32
    assert found[0]["examples"] == whole[0]["examples"] == ROWS
    assert found[3].position == whole[3].position  # the beginning of the next epoch


def test_rates_that_count_batches_are_for_one_of_them(data, tmp_path):
    """Four micro-batches at a rate for one are, with SGD, the whole batch at twice that rate."""
    sgd = dict(max_steps=3, optimizer="sgd")
    found = _train(data, tmp_path / "found", 8, 4, rates=(0.01, 0.02), scale_lr="sqrt_batches", **sgd)
    _assert_equal(found, _train(data, tmp_path / "whole", 32, 1, rates=(0.02, 0.04), **sgd))


@pytest.mark.parametrize(
    ("how", "expected"),
    [("linear", 3), ("sqrt", 3**0.5), ("none", 1), ("linear_batches", 12), ("sqrt_batches", 12**0.5)],
)
def test_the_scale_of_the_rates_for_three_workers_with_four_batches_a_step(monkeypatch, how, expected):
    monkeypatch.setattr(distributed, "size", lambda: 3)
    assert distributed.lr_scale(how, 4) == pytest.approx(expected)


def test_a_run_of_micro_batches_goes_on_where_it_stopped(data, tmp_path, whole):
    first = _train(data, tmp_path, 8, 4, max_steps=13)
    assert (first[0]["steps"], first[0]["examples"]) == (13, 13 * 32)
    assert first[3].position["shares"] == [[[13 * 32, ROWS]]]
    second = _train(data, tmp_path, 8, 4)
    assert second[0]["steps"] == 19
    _assert_equal(second, whole)


class _Features(dict):
    """What TrainOp reads of `FedFeatures`, without rows."""

    def __init__(self):
        super().__init__(weight=tf.ones([1]))
        self.placeholders = []


def _one_step(**settings):
    """Returns kernel and bias, initially [[2, 0]] and [1], after a step with gradients [[3, 4]] and [1], rate 0.1."""
    with tf.Graph().as_default():
        kernel = tf1.get_variable("deep/kernel", initializer=[[2.0, 0.0]])
        bias = tf1.get_variable("wide/bias", initializer=[1.0])
        loss = tf.reduce_sum(kernel * [[3.0, 4.0]]) + tf.reduce_sum(bias)
        train_op = TrainOp("sgd", 0.1, **settings).build(loss, _Features()).train_op
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            return [value.ravel().tolist() for value in session.run([kernel, bias])]


@pytest.mark.parametrize(
    ("settings", "kernel", "bias"),
    [
        ({}, [1.7, -0.4], [0.9]),
        (dict(l2=0.5), [1.6, -0.4], [0.9]),  # the gradient's first element is 3 + 0.5 * 2; the bias has none
        (dict(clip_norm=26**0.5 / 2), [1.85, -0.2], [0.95]),
        (dict(clip_norm=6.0), [1.7, -0.4], [0.9]),
        (dict(lr_groups=("deep:0.5", "wide:2")), [1.85, -0.2], [0.8]),
    ],
)
def test_one_step_by_hand(settings, kernel, bias):
    found = _one_step(**settings)
    assert found[0] == pytest.approx(kernel, abs=1e-6)
    assert found[1] == pytest.approx(bias, abs=1e-6)


_FTRL = Ftrl(ftrl_l1=0.1, ftrl_l2=0.1, weight_decay=0.1)


@pytest.mark.parametrize("scales_loss", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam", "adamw", "lamb", _FTRL])
def test_a_step_of_padding_moves_no_dense_variable(optimizer, scales_loss):
    with tf.Graph().as_default(), tf1.Session() as session:
        features, kernel = _Features(), tf1.get_variable("kernel", initializer=[[2.0, 1.0]])
        features["weight"] = weight = tf1.placeholder(tf.float32, [1])
        loss = tf.reduce_sum(weight * kernel * [[3.0, 4.0]])
        step = TrainOp(optimizer, 0.1, l2=0.5).build(loss, features, scales_loss=scales_loss).train_op
        session.run(tf1.global_variables_initializer())
        found = []
        for each in (1.0, 0.0, 0.0, 1.0):
            session.run(step, {weight: [each]})
            found.append(session.run(kernel).tolist())
        assert found[0] == found[1] == found[2] != found[3]


def test_a_step_of_padding_in_micro_batches_moves_no_dense_variable():
    with tf.Graph().as_default(), tf1.Session() as session:
        kernel, weight = tf1.get_variable("kernel", initializer=[[2.0, 1.0]]), tf1.placeholder(tf.float32, [])
        optimizer = DenseUpdate(TrainOp("adamw", 0.1, l2=0.5), tf.constant(0.1), tf.constant(0))
        rows = dict(rows=[], row_learning_rate=tf.constant(0.1), exchange=Exchange("none", ""))
        loss, length = tf.reduce_sum(kernel) * weight, RunLength(accumulation_steps=2)
        step = optimizer_step(optimizer, loss, weight, **rows, run_length=length)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])

        def run(of_micro_batch, of_last):
            session.run(step.accumulate, {weight: of_micro_batch})
            session.run(step.train_op, {weight: of_last})
            return session.run(kernel).tolist()

        trained = run(0.0, 1.0)  # Half of the step was padding.
        assert [[2.0, 1.0]] != trained == run(0.0, 0.0) != run(1.0, 0.0)


def _endless(batch):
    return lambda: tf.data.Dataset.from_tensors(np.array(batch, np.float32)).repeat()


def _counting_model_fn(features, labels, mode, params):
    """Adds 1 to `batches_seen` in each run, as tf.layers.batch_normalization updates its moving statistics."""
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    count = tf1.get_variable("batches_seen", [], initializer=tf1.zeros_initializer(), trainable=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, count.assign_add(1.0))
    return EstimatorSpec(mode, loss=tf.reduce_mean(w * features), optimizer=tf1.train.GradientDescentOptimizer(0.1))


def test_what_a_model_fn_updates_by_each_batch_is_updated_once_in_each(tmp_path):
    estimator = Estimator(_counting_model_fn, tmp_path, config=RunConfig(threads=1))
    estimator.train(_endless([1.0] * 4), max_steps=3)
    assert estimator.get_variable_value("batches_seen") == 3

    # In micro-batches.
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = _counting_model_fn(tf.ones([4]), None, ModeKeys.TRAIN, None)
        length, exchange = RunLength(accumulation_steps=2), Exchange("none", "")
        rows = dict(rows=[], row_learning_rate=tf.constant(0.1))
        step = optimizer_step(spec.optimizer, spec.loss, tf.ones([]), **rows, run_length=length, exchange=exchange)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        for operation in (step.accumulate, step.train_op, step.accumulate, step.train_op):
            session.run(operation)
        assert session.run(tf1.global_variables()[:2]) == pytest.approx([-0.2, 4])


def _normed_model_fn(features, labels, mode, params):
    loss = tf.reduce_mean(batch_norm(features, training=mode == ModeKeys.TRAIN, momentum=0.5))
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_or_create_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_a_train_op_of_a_program_moves_the_statistics_of_batch_norm_too(tmp_path):
    estimator = Estimator(_normed_model_fn, tmp_path, config=RunConfig(threads=1))
    estimator.train(_endless([[1.0], [3.0]]), max_steps=3)
    weight, moments = (estimator.get_variable_value(f"batch_norm/{name}") for name in ("weight", "moments"))
    assert (weight, moments.ravel().tolist()) == (0.875, [2 * 0.875, 2 * 0.875])  # The mean, and the unbiased variance.


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(UserError, match="choose one of"):
        TrainOp(optimizer="adamx")


def _factors(groups, *names):
    with tf.Graph().as_default():
        return factors_of(groups, [tf1.get_variable(name, []) for name in names])


def test_the_longest_scope_counts_and_others_have_the_whole_rate():
    groups = parse_lr_groups(["mlp:0.1", "mlp/layer_1:2", "linear:0"])
    names = ("mlp/layer_0/kernel", "mlp/layer_1/bias", "mlp_2/kernel", "linear/bias", "logits/bias")
    assert _factors(groups, *names) == [0.1, 2.0, 1.0, 0.0, 1.0]
    with pytest.raises(UserError, match="lr_groups=deep: .* there are linear, linear/bias, mlp, mlp/layer_0"):
        _factors(parse_lr_groups(["deep:0.1"]), "mlp/layer_0/kernel", "linear/bias")


def test_what_is_no_scope_and_factor_is_refused():
    for text in ("mlp", "mlp:", ":0.1", "mlp:fast", "mlp:-1", "mlp:nan"):
        with pytest.raises(ValueError, match="expected scope:factor"):
            parse_lr_groups([text])
    with pytest.raises(ValueError, match="mlp has a factor already"):
        parse_lr_groups(["mlp:0.1", "mlp:0.2"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"learning_rate": 0.5}, "learning_rate=0.5: with a TrainOp, give it as its embedding_learning_rate"),
        ({"clip_norm": 2.0}, "clip_norm=2, and the TrainOp has 1.0"),
    ],
)
def test_settings_of_rows_that_a_train_op_would_ignore_are_refused(tmp_path, data, rows, message):
    train_op = TrainOp("sgd", 0.1, clip_norm=1.0)
    estimator = deepfm.estimator(tmp_path, train_op, embedding=EmbeddingConfig(**rows))
    with pytest.raises(UserError, match=message):
        estimator.train(deepfm.batches(data, 32), max_steps=1)
