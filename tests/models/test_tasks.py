"""The models of histories and of several labels, from their first step to their export."""

import csv

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.errors import UserError
from ctr_trainer.estimator import Estimator
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models import deepfm, mmoe
from ctr_trainer.models.params import ModelParams
from tests import small
from tests.models import tasks

ROWS, STEPS = 300, 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """-> by number of labels, a data set."""
    distributed.init()
    return {labels: small.make(tmp_path_factory.mktemp(f"labels{labels}"), ROWS, labels=labels) for labels in (1, 2)}


def _raw_values(directory):
    """-> the raw values of a data set of tests/small.py as the inputs of an exported graph, by feature."""
    with open(directory / "rows.csv") as file:
        rows = list(csv.DictReader(file))
    values = {}
    spec = FeatureSpec.load(directory / "spec.toml")
    for feature in (*spec.dense, *spec.bucketised):
        values[feature.name] = np.float32([row[feature.column] or "nan" for row in rows])
    for feature in spec.sparse:
        texts = [row[feature.column] for row in rows]
        if feature.combiner is not None:
            lists = [text.split(feature.separator) if text else [] for text in texts]
            texts = [each + [""] * (max(map(len, lists)) - len(each)) for each in lists]
        values.setdefault(feature.name, texts)
    return {name: tf.constant(value) for name, value in values.items()}


@pytest.mark.parametrize("case", tasks.CASES)
def test_trains_resumes_evaluates_and_exports(case, data, tmp_path):
    data = data[tasks.CASES[case][0]]
    whole = tasks.train(case, tmp_path / "whole", data, STEPS)
    expected = tasks.predictions(whole, data)
    tasks.train(case, tmp_path / "resumed", data, STEPS // 2)
    resumed = tasks.predictions(tasks.train(case, tmp_path / "resumed", data, STEPS), data)
    exported = tf.saved_model.load(whole.export_to(tmp_path / "export")).signatures["serving_default"]
    assert not [op.type for op in exported.graph.get_operations() if "PyFunc" in op.type]
    served = exported(**_raw_values(data.parent))
    assert set(served) == set(expected)
    for name, values in expected.items():
        assert np.std(values) > 1e-3, name
        np.testing.assert_allclose(resumed[name], values, atol=1e-6, rtol=0, err_msg=name)
        np.testing.assert_allclose(served[name].numpy(), values, atol=2e-6, rtol=0, err_msg=name)
    metrics = whole.evaluate(lambda: tasks.once(data))
    assert metrics["examples"] == ROWS
    for label in _predicted(case):
        assert metrics[f"auc{label}"] > 0.55, (label, metrics)


def _predicted(case):
    """-> what stands behind the names of a case's metrics: a label each."""
    labels, model, settings = tasks.CASES[case]
    if labels == 1:
        return [""]
    return [f"/{settings['label']}"] if "label" in settings else [f"/{label}" for label in tasks.LABELS]


def test_esmm_predicts_the_product_of_click_and_conversion(data, tmp_path):
    predicted = tasks.predictions(tasks.train("esmm", tmp_path / "model", data[2], 5), data[2])
    product = np.multiply(predicted["probabilities/clicked"], predicted["cvr"])
    np.testing.assert_allclose(predicted["probabilities/bought"], product, rtol=1e-5)


def test_a_model_of_one_label_wants_to_know_which(data, tmp_path):
    model = Estimator(deepfm.model_fn, tmp_path / "model", ModelParams(TrainOp()))
    with pytest.raises(UserError, match="--label=: .*clicked, bought"):
        model.train(lambda: tasks.once(data[2]))


def test_a_model_of_several_labels_wants_several(data, tmp_path):
    model = Estimator(mmoe.model_fn, tmp_path / "model", mmoe.Params(TrainOp()))
    with pytest.raises(UserError, match="--model=mmoe predicts several labels and the data has one"):
        model.train(lambda: tasks.once(data[1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"click": "sold"}, "click=sold: no such label; the feature spec has clicked, bought"),
        ({"conversion": "clicked"}, "click=clicked,conversion=clicked: must be two labels"),
    ],
)
def test_esmms_labels_must_be_two_of_the_specs(data, tmp_path, settings, message):
    found = tasks.find_model("esmm")
    model = Estimator(found.model_fn, tmp_path / "model", found.params_class(TrainOp(), **settings))
    with pytest.raises(UserError, match=message):
        model.train(lambda: tasks.once(data[2]))
