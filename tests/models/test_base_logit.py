"""Where the last bias of each model starts."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.data.convert import convert
from ctr_trainer.estimator import ModeKeys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models.params import ModelParams
from tests import golden
from tests.models import every

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
        biases = session.run([v for v in tf1.trainable_variables() if v.op.name.endswith("bias")])
    expected = [logit(MEANS[label])]
    if name == "esmm":
        expected = [logit(MEANS["clicked"]), logit(MEANS["bought"] / MEANS["clicked"])]
    elif params.several_labels:
        expected = [logit(mean) for mean in MEANS.values()]
    elif name in ("final_net", "fcn"):
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


@pytest.mark.parametrize("means", [{}, {"y": 0.0}, {"y": 1.0}, {"y": 0.06}, {"y": 0.5}, MEANS])
def test_without_a_rare_label_a_model_starts_at_one_half(means):
    assert ModelParams(label_means=means).base_logit() == 0


def test_training_by_the_command_line_starts_at_the_share_that_the_conversion_counted(tmp_path, caplog):
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
