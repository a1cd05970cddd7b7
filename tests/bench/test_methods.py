"""Methods that are measured, and the convolutional network of `bench network`."""

import json

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.bench import methods, models, reference_networks, worker
from ctr_trainer.bench.models import gpus_of, in_towers
from ctr_trainer.bench.report import Figure
from ctr_trainer.commands.experiment.build import start_workers
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.tensors import Features
from ctr_trainer.models import deepfm, din
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError
from tests import golden, small
from tests.constant import CONSTANT


def _train(data, model_dir, model_fn, **params):
    losses = golden.Losses(model_fn)
    params = ModelParams(TrainOp("adagrad", 0.05, 0.1, **CONSTANT), hidden_units=(8,), **params)
    estimator = Estimator(losses.model_fn, model_dir, params, RunConfig(threads=1), name="towers")
    estimator.train(lambda: BatchReader(data, 32, shuffle=False, epochs=1), [losses])
    return losses.values


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    distributed.init()
    return small.make(tmp_path_factory.mktemp("towers"), rows=203)  # The last of 7 batches has 11 examples.


@pytest.mark.parametrize("towers", [2, 4])
def test_towers_train_as_the_whole_batch_does(data, tmp_path, towers):
    whole = _train(data, tmp_path / "whole", deepfm.model_fn)
    assert len(whole) == 7
    np.testing.assert_allclose(_train(data, tmp_path / "cut", in_towers(deepfm.model_fn, towers)), whole, rtol=1e-5)


def test_towers_cut_sequences_as_well(data, tmp_path):
    def model_fn(features, labels, mode, params):
        more = dict(sequences=("history",), target="item", attention_activation="sigmoid", attention_units=(8,))
        return din.model_fn(features, labels, mode, din.Params(params.train_op_fn, hidden_units=(8,), **more))

    whole = _train(data, tmp_path / "whole", model_fn)
    np.testing.assert_allclose(_train(data, tmp_path / "cut", in_towers(model_fn, 2)), whole, rtol=1e-5)


class _Ones(Features):
    """Eight examples of weight 1, without a table."""

    batch_size = 8

    def _make(self, name):
        return tf.ones([self.batch_size])

    _raw_dense = _weight = _segment = _sequence = _mask = None


@pytest.mark.parametrize(
    ("gpus", "towers", "visible", "asked"),
    [
        (4, 2, "0,1", {"/device:GPU:0", "/device:GPU:1"}),
        (2, 2, "0,1", {"/device:GPU:0", "/device:GPU:1"}),
        (1, 2, "0", {"/device:CPU:0"}),
        (0, 2, "", {"/device:CPU:0"}),
    ],
)
def test_the_session_of_a_process_with_towers_sees_every_card_that_its_graph_asks_for(
    monkeypatch, gpus, towers, visible, asked
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    found = set()

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_sum(features["weight"])
        found.add(loss.device)
        return EstimatorSpec(mode, {}, loss, params.train_op_fn(loss, features))

    try:
        start_workers(Experiment(), gpus_each=gpus_of(towers) or 1)
        assert distributed.session_config().gpu_options.visible_device_list == visible
    finally:
        monkeypatch.undo()
        distributed.init()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    with tf.Graph().as_default():
        params = ModelParams(lambda loss, features: loss)
        in_towers(model_fn, towers)(_Ones(None, None), tf.ones([8]), ModeKeys.TRAIN, params)
    assert found == asked


def test_what_towers_cannot_do_is_refused(data, tmp_path):
    with pytest.raises(UserError, match="a batch of 32 examples is not divisible by 3 towers"):
        _train(data, tmp_path, in_towers(deepfm.model_fn, 3))
    with pytest.raises(UserError, match="--batch_norm would normalize each tower"):
        _train(data, tmp_path, in_towers(deepfm.model_fn, 2), batch_norm=True)


def test_time_saved_and_speed_up_are_against_one_worker_of_the_same_round():
    def ranks(auc, *rates):
        own = {"auc": auc, "accuracy": auc / 2, "learning_rate": 0.1, "evaluation_seconds": 3.0}
        return [{"examples_per_sec": rate, **own} for rate in rates]

    alone, two = [ranks(0.7, 100.0), ranks(0.8, 200.0)], [ranks(0.6, 80.0, 80.0), ranks(0.7, 150.0, 150.0)]
    found = methods.summarize(two, alone, 1600)
    assert found["seconds"].values == pytest.approx((10.0, 1600 / 300))
    assert found["speedup_percent"].values == pytest.approx((60.0, 50.0))
    assert found["saved_percent"].values == pytest.approx((37.5, 100 / 3))
    assert (found["auc"].values, found["accuracy"].values) == ((0.6, 0.7), (0.3, 0.35))
    assert found["seconds_with_evaluation"].values == pytest.approx((13.0, 3 + 1600 / 300))
    assert methods.summarize(two, None, 1600)["saved_percent"] is None


def test_the_gain_of_a_row_is_over_the_row_above_it_in_the_same_round():
    rows = {name: {"together": Figure(rates)} for name, rates in (("one", (10.0, 20.0)), ("two", (15.0, 10.0)))}
    one, two = methods.with_gains(rows).values()
    assert one["gain_percent"] is None and two["gain_percent"].values == pytest.approx((50.0, -50.0))


@pytest.mark.integration
def test_a_real_run_measures_every_method_on_equal_examples(tmp_path, capsys, warm_python):
    sizes = ["--rows=3000", "--batch_size=32", "--hidden_units=8", "--steps=60", "--rounds=1"]
    assert cli.main(["bench", "methods", f"--output={tmp_path}", *sizes]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "methods.json").read_text())
    names = ["one worker", "one process, two towers", "two processes", "two processes, 5 batches a step"]
    assert list(found["methods"]) == names and found["failed"] == {}
    for row in found["methods"].values():
        assert row["seconds"]["median"] > 0 and 0 < row["auc"]["median"] < 1 and 0 < row["accuracy"]["median"] < 1
        assert row["seconds_with_evaluation"]["median"] > row["seconds"]["median"]
    rates = [row["learning_rate"]["median"] for row in found["methods"].values()]
    assert rates[1] == pytest.approx(2 * rates[0])
    assert list(found["batch_sizes"].values()) == [32, 64, 64, 320]
    assert found["overloaded"] == (found["machine"]["load"] > found["machine"]["cores"])
    assert shown.startswith("Measured at a load of ") == found["overloaded"]
    assert "Optimizer steps: one worker 80, one process, two towers 40, two processes 40, " in shown
    assert (tmp_path / "methods.png").exists()


tf1 = tf.compat.v1
RESNET50_PARAMETERS, RESNET50_PRODUCTS = 25.6e6, 4.1e9


def _features(examples):
    rng = np.random.default_rng(1)
    shapes = {"embedding": (examples, worker.FIELDS, worker.DIM), "dense": (examples, worker.DENSE)}
    features = {name: tf.constant(rng.standard_normal(shape), tf.float32) for name, shape in shapes.items()}
    return {**features, "weight": tf.ones([examples])}


def _build(channels, examples=8, train_op_fn=lambda loss, features: tf.no_op()):
    params = models.Params(train_op_fn=train_op_fn, channels=channels)
    labels = tf.constant(np.arange(examples) % 2, tf.float32)
    return models.model_fn(_features(examples), labels, ModeKeys.TRAIN, params)


@pytest.mark.parametrize("channels", [1, 5])
def test_its_parameters_are_those_that_are_counted_and_the_last_layers(channels):
    with tf.Graph().as_default():
        _build(channels)
        variables = tf1.trainable_variables()
    last = 2 * channels + worker.DENSE + 1
    assert (
        sum(variable.shape.num_elements() for variable in variables) == reference_networks.parameters(channels) + last
    )
    assert reference_networks.parameters(1) == 198 + 24
    assert reference_networks.parameters(18) == 198 * 18**2 + 24 * 18


@pytest.mark.parametrize("scale", [1, 100, 400])
def test_it_has_about_as_many_parameters_as_are_asked_for(scale):
    channels = reference_networks.channels_for(RESNET50_PARAMETERS / scale)
    assert reference_networks.parameters(channels) == pytest.approx(RESNET50_PARAMETERS / scale, rel=0.05)
    with pytest.raises(UserError, match="100 parameters are too few for convolutions"):
        reference_networks.channels_for(100)


def test_a_parameter_takes_part_in_as_many_products_as_one_of_resnet50():
    with tf.Graph().as_default() as graph:
        _build(18, examples=1)
        convolutions = [op for op in graph.get_operations() if op.type == "Conv2D"]
        products = sum(
            op.inputs[1].shape.num_elements() * op.outputs[0].shape[1] * op.outputs[0].shape[2] for op in convolutions
        )
    found, known = products / reference_networks.parameters(18), RESNET50_PRODUCTS / RESNET50_PARAMETERS
    assert found == pytest.approx(known, rel=0.05)


def test_training_steps_move_every_variable_and_lower_the_loss():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        spec = _build(4, 32, lambda loss, _: tf1.train.AdagradOptimizer(0.05).minimize(loss))
        session.run(tf1.global_variables_initializer())
        before = session.run(tf1.trainable_variables())
        first, _ = session.run([spec.loss, spec.train_op])
        after = session.run(tf1.trainable_variables())
        assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))
        for _ in range(20):
            last, _ = session.run([spec.loss, spec.train_op])
    assert np.isfinite(last) and last < first


def test_it_is_found_by_its_name_as_a_users_own_model_is():
    found = find_model(reference_networks.MODEL)
    assert found.model_fn is models.model_fn and found.params_class is models.Params
    with pytest.raises(UserError, match="^channels=0: must be at least 1"):
        models.Params(channels=0)
