"""What is particular to models of several labels; what all models have in common is in test_models.py."""

import dataclasses

import pytest

from ctr_trainer.estimator import Estimator
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import mmoe
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.models import every


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set for each number of labels."""
    distributed.init()
    return {labels: small.make(tmp_path_factory.mktemp(f"labels{labels}"), 300, labels=labels) for labels in (1, 2)}


def test_esmm_predicts_the_product_of_click_and_conversion(data, tmp_path):
    model = every.estimator("esmm", tmp_path / "model")
    model.train(lambda: every.reader("esmm", data[2]), max_steps=5)
    for example in model.predict(lambda: every.once("esmm", data[2])):
        product = example["probabilities/clicked"] * example["cvr"]
        assert example["probabilities/bought"] == pytest.approx(product, rel=1e-5)


def test_a_model_of_several_labels_wants_several(data, tmp_path):
    model = Estimator(mmoe.model_fn, tmp_path / "model", mmoe.Params(TrainOp()))
    with pytest.raises(UserError, match="model mmoe predicts several labels and the data has one"):
        model.train(lambda: every.once("", data[1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"click": "sold"}, "click=sold: no such label; the feature spec has clicked, bought"),
        ({"conversion": "clicked"}, "click=clicked,conversion=clicked: must be two labels"),
    ],
)
def test_esmms_labels_must_be_two_of_the_specs(data, tmp_path, settings, message):
    found = find_model("esmm")
    model = Estimator(found.model_fn, tmp_path / "model", found.params_class(TrainOp(), **settings))
    with pytest.raises(UserError, match=message):
        model.train(lambda: every.once("", data[2]))


def test_esmm_ends_at_a_conversion_without_a_click_and_counts_them(data, tmp_path):
    model = every.estimator("esmm", tmp_path / "model")
    params = dataclasses.replace(model.params, click="bought", conversion="clicked")
    turned = Estimator(find_model("esmm").model_fn, tmp_path / "model", params, model.config)
    message = r"model=esmm: \d+ of \d+ examples with clicked = 1 have bought = 0, in a batch of"
    with pytest.raises(UserError, match=message):
        turned.train(lambda: every.reader("esmm", data[2]), max_steps=5)
