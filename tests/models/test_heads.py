"""Heads: losses and predictions against the formulas in NumPy, and where the last bias of each model starts."""

import dataclasses
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.estimator import ModeKeys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models import esmm
from ctr_trainer.models.head import binary_head, multi_head
from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.messages.errors import UserError
from tests import golden
from tests.layers.run import run
from tests.models import every

A, B = np.float32([[1.5], [-2.0], [0.25]]), np.float32([[0.5], [3.0], [-1.0]])
CLICK, BUY, WEIGHT = np.float32([1, 0, 1]), np.float32([1, 0, 0]), np.float32([1, 2, 0.5])


class FakeFeatures(dict):
    """Features with a spec whose labels have the weights 1 and 3."""

    def __init__(self, weight, *names):
        super().__init__(weight=weight)
        weights = (1.0, 3.0)
        labels = [types.SimpleNamespace(name=n, weight=w) for n, w in zip(names, weights, strict=False)]
        self.spec = types.SimpleNamespace(labels=labels, name="fake")


def _sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def _cross_entropy(p, y):
    losses = -(y * np.log(p[:, 0]) + (1 - y) * np.log(1 - p[:, 0]))
    return (losses * WEIGHT).sum() / WEIGHT.sum()


def _eval(make, *arrays):
    return run(make, *arrays)[0]


def test_several_losses_are_summed_by_their_labels_weights():
    def make(a, b, click, buy, weight):
        features = FakeFeatures(weight, "click", "buy")
        spec = multi_head(features, {"click": click, "buy": buy}, ModeKeys.EVAL, ModelParams(), {"click": a, "buy": b})
        return spec.loss, spec.predictions

    loss, predictions = _eval(make, A, B, CLICK, BUY, WEIGHT)
    expected = _cross_entropy(_sigmoid(A), CLICK) + 3 * _cross_entropy(_sigmoid(B), BUY)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert sorted(predictions) == ["logits/buy", "logits/click", "probabilities/buy", "probabilities/click"]
    np.testing.assert_allclose(predictions["probabilities/buy"], _sigmoid(B)[:, 0], rtol=1e-6)
    np.testing.assert_array_equal(predictions["logits/click"], A[:, 0])


def test_an_extra_loss_is_trained_and_not_reported():
    trained = []

    def make(a, click, weight):
        params = ModelParams(train_op_fn=lambda loss, features: trained.append(loss) or tf.no_op())
        spec = binary_head({"weight": weight}, click, ModeKeys.TRAIN, params, a, tf.constant(10.0))
        return spec.loss, trained[0]

    reported, loss = _eval(make, A, CLICK, WEIGHT)
    assert reported == pytest.approx(_cross_entropy(_sigmoid(A), CLICK), rel=1e-6)
    assert loss == pytest.approx(reported + 10)


class TestOneLabelOfSeveral:
    def test_is_chosen_by_name(self):
        def make(b, click, buy, weight):
            features = FakeFeatures(weight, "click", "buy")
            params = ModelParams(label="buy")
            spec = binary_head(features, {"click": click, "buy": buy}, ModeKeys.EVAL, params, b)
            return spec.loss, spec.predictions

        loss, predictions = _eval(make, B, CLICK, BUY, WEIGHT)
        assert loss == pytest.approx(3 * _cross_entropy(_sigmoid(B), BUY), rel=1e-6)
        assert sorted(predictions) == ["logits/buy", "probabilities/buy"]

    def test_has_its_weight_in_all_terms_of_the_loss(self):
        def make(b, extra, buy, weight):
            trained = []
            params = ModelParams(lambda loss, features: trained.append(loss) or tf.no_op(), label="buy")
            labels = {"click": buy, "buy": buy}
            binary_head(FakeFeatures(weight, "click", "buy"), labels, ModeKeys.TRAIN, params, b, extra)
            return trained[0]

        loss = _eval(make, B, np.float32(2), BUY, WEIGHT)
        assert loss == pytest.approx(3 * (_cross_entropy(_sigmoid(B), BUY) + 2), rel=1e-6)

    @pytest.mark.parametrize("label", ["", "sold"])
    @pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
    def test_must_be_one_of_them(self, label, mode):
        with tf.Graph().as_default(), pytest.raises(UserError, match=f"label={label}: .* click, buy"):
            labels = {"click": tf.constant(CLICK), "buy": tf.constant(BUY)} if mode == ModeKeys.EVAL else None
            features = FakeFeatures(tf.constant(WEIGHT), "click", "buy")
            binary_head(features, labels, mode, ModelParams(label=label), tf.constant(A))


class TestLogitOfProduct:
    def test_is_the_logit_of_the_product_of_two_probabilities(self):
        p = _sigmoid(A) * _sigmoid(B)
        np.testing.assert_allclose(_eval(esmm.logit_of_product, A, B), np.log(p / (1 - p)), rtol=1e-5)

    @pytest.mark.parametrize(
        ("a", "b", "expected"), [(100, 3, 3), (-100, -100, -200), (60, 60, 60 - np.log(2)), (1e4, -1e4, -1e4)]
    )
    def test_holds_where_the_product_rounds_to_zero_or_one(self, a, b, expected):
        assert _eval(esmm.logit_of_product, np.float32([a]), np.float32([b]))[0] == pytest.approx(expected, rel=1e-6)

    def test_its_gradients_are_finite_far_out_and_right_near_zero(self):
        """d logit / da = (1 - p_a) / (1 - p_a p_b)."""

        def gradients(a, b):
            return tf.gradients(esmm.logit_of_product(a, b), [a, b])

        extreme = np.float32([100, -100, 1e4, -1e4])
        assert np.isfinite(_eval(gradients, extreme, extreme[::-1].copy())).all()
        of_a, of_b = _eval(gradients, A, B)
        p, q = _sigmoid(A), _sigmoid(B)
        np.testing.assert_allclose(of_a, (1 - p) / (1 - p * q), rtol=1e-5)
        np.testing.assert_allclose(of_b, (1 - q) / (1 - p * q), rtol=1e-5)


LOGITS, LABELS, WEIGHTS = [[0.0], [1.0], [-2.0]], [1.0, 0.0, 1.0], [1.0, 2.0, 0.0]


def _of_one_label(mode, **params):
    """Returns (loss or None, probabilities)."""
    with tf.Graph().as_default():
        train_op = lambda loss, features: tf.no_op()  # noqa: E731
        labels = None if mode == ModeKeys.PREDICT else tf.constant(LABELS)
        features = {"weight": tf.constant(WEIGHTS)}
        spec = binary_head(features, labels, mode, ModelParams(train_op, **params), tf.constant(LOGITS))
        with tf.compat.v1.Session() as session:
            loss = None if spec.loss is None else session.run(spec.loss)
            return loss, session.run(spec.predictions["probabilities"])


def _log_loss(positive_weight=1.0):
    losses = [positive_weight * np.log(2), np.log(1 + np.e)]  # of the two examples that count
    return (losses[0] + 2 * losses[1]) / 3


def test_a_positive_example_counts_by_its_class_weight_while_training_only():
    assert _of_one_label(ModeKeys.TRAIN)[0] == pytest.approx(_log_loss(), rel=1e-6)
    assert _of_one_label(ModeKeys.TRAIN, positive_weight=4.0)[0] == pytest.approx(_log_loss(4.0), rel=1e-6)
    assert _of_one_label(ModeKeys.EVAL, positive_weight=4.0)[0] == pytest.approx(_log_loss(), rel=1e-6)


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_predictions_are_calibrated_for_the_negatives_left_out(mode):
    p, w = 1 / (1 + np.exp(-np.ravel(LOGITS))), 0.1
    np.testing.assert_allclose(_of_one_label(mode, negative_sampling=w)[1], p / (p + (1 - p) / w), rtol=1e-5)
    np.testing.assert_allclose(_of_one_label(mode)[1], p, rtol=1e-6)


def test_training_goes_on_with_the_probability_among_the_sampled():
    assert _of_one_label(ModeKeys.TRAIN, negative_sampling=0.1)[0] == pytest.approx(_log_loss(), rel=1e-6)


@pytest.mark.parametrize(
    "params", [dict(positive_weight=0.0), dict(negative_sampling=0.0), dict(negative_sampling=1.1)]
)
def test_weights_and_shares_out_of_range_are_refused(params):
    with pytest.raises(UserError, match="above 0"):
        ModelParams(**params)


tf1 = tf.compat.v1
MEANS = {"clicked": 0.02, "bought": 0.0005}


def logit(share):
    return math.log(share / (1 - share))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return golden.make_data(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", every.VARIANTS)
def test_a_model_starts_at_the_shares_of_positive_examples(name, data, tmp_path):
    made, reader = every.estimator(name, tmp_path / "model"), golden.reader(name, data)
    label = made.params.label or "clicked"
    params = dataclasses.replace(made.params, label_means=MEANS, label=label)
    with tf.Graph().as_default(), tf1.Session() as session:
        made.model_fn(FedFeatures(reader.spec, reader.statistics, 32), None, ModeKeys.PREDICT, params)
        session.run(tf1.global_variables_initializer())
        # In FCN, the biases of hidden layers start at random numbers.
        variables = [v for v in tf1.trainable_variables() if "/layer_" not in v.op.name]
        biases = session.run([v for v in variables if v.op.name.endswith("bias")])
    expected = [logit(MEANS[label])]
    if name == "esmm":
        expected = [logit(MEANS["clicked"]), logit(MEANS["bought"] / MEANS["clicked"])]
    elif params.several_labels:
        expected = [logit(mean) for mean in MEANS.values()]
    elif name in ("final_net", "fcn", "fcn-norm"):
        expected *= 2  # Of the two streams, whose mean is the prediction.
    elif name == "tabm":
        expected *= 3  # One for each member.
    started = sorted(float(value) for bias in biases for value in np.ravel(bias) if value)
    assert started == pytest.approx(sorted(expected), rel=1e-6)


def test_the_base_logit_is_that_of_the_examples_trained_on():
    assert ModelParams().base_logit() == 0
    assert ModelParams(label_means={"y": 0.01}).base_logit() == pytest.approx(logit(0.01))
    assert ModelParams(label_means={"y": 0.99}).base_logit() == pytest.approx(logit(0.99))
    # Of 1 positive and 99 negative examples a share of 1/9 of the negatives leaves 1 and 11.
    assert ModelParams(label_means={"y": 0.01}, negative_sampling=1 / 9).base_logit() == pytest.approx(math.log(1 / 11))
    assert ModelParams(label_means={"y": 0.01}, positive_weight=99.0).base_logit() == pytest.approx(0)
    assert ModelParams(label_means=MEANS, label="bought").base_logit() == pytest.approx(logit(0.0005))
    assert ModelParams(label_means=MEANS).base_logit("bought", given="clicked") == pytest.approx(logit(0.025))
    # Of a weight, the product with the p of `given` has one.
    weighted = ModelParams(label_means=MEANS, positive_weight=99.0)
    odds = [1 / (1 + math.exp(-weighted.base_logit(*names))) for names in (("clicked",), ("bought", "clicked"))]
    assert math.prod(odds) == pytest.approx(99 * 0.0005 / (1 + 98 * 0.0005))


@pytest.mark.parametrize("means", [{}, {"y": 0.0}, {"y": 1.0}, {"y": 0.06}, {"y": 0.5}, MEANS])
def test_without_a_rare_label_a_model_starts_at_one_half(means):
    assert ModelParams(label_means=means).base_logit() == 0


def test_training_starts_at_the_share_that_the_conversion_counted(tmp_path, caplog):
    rng = np.random.default_rng(0)
    clicks, users = rng.random(5000) < 0.01, rng.integers(0, 50, 5000)
    lines = [f"{click:d},{user}" for click, user in zip(clicks, users, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["click,user", *lines]) + "\n")
    spec = FeatureSpec.from_dict({"name": "rare", "label": {"column": "click"}, "sparse": [{"name": "user", "dim": 4}]})
    info = convert("csv", tmp_path / "a.csv", tmp_path / "data", spec, progress=False)["parts"]["all"]
    flags = [f"--train_data={tmp_path / 'data'}", f"--model_dir={tmp_path / 'model'}", "--model=lr", "--threads=1"]
    with caplog.at_level("INFO"):
        assert cli.main(["train", *flags, "--learning_rate=0", "--embedding_learning_rate=0", "--batch_size=500"]) == 0
    lines = [record.getMessage() for record in caplog.records]
    assert any(f"click {info.label_mean:.4%}; the last bias of the model starts at it" in line for line in lines)
    (shown,) = {float(line.split("prob_mean = ")[1].split()[0]) for line in lines if "prob_mean = " in line}
    assert shown == pytest.approx(info.label_mean, rel=1e-4)
