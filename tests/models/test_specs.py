"""Models on specs without dense or sparse features, with several dims or labels: they work or say why not."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator import Estimator, ModeKeys
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models import dcn_v2, fibinet, final_mlp, masknet, mmoe, param_texts
from ctr_trainer.models.registry import MODELS, find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.models import every

tf1 = tf.compat.v1
MINE = [name for name in every.VARIANTS if name not in every.CASES]
USER, ITEM = dict(name="user", column="user", dim=4), dict(name="item", column="item", dim=4)
PRICE = dict(name="price", column="price")
_ANY_DIM = ("lr", "wide_deep", "dcn_v2", "final_mlp", "gdcn", "final_net", "qnn", "fcn", "rank_mixer", "pepnet", "tabm")
# Those of them that compare the embeddings with each other.
ONE_DIM = [name for name in MINE if name.partition("-")[0] not in _ANY_DIM]


def _logits(name, sparse=(), dense=(), **settings):
    """Returns the logits of a model, float32[3], for a batch of random rows with the features of a spec."""
    values = {"name": "made", "label": [{"column": "clicked"}], "sparse": list(sparse), "dense": list(dense)}
    spec = FeatureSpec.from_dict(values)
    model = name.partition("-")[0]
    found = find_model(model)
    params = found.params_class(hidden_units=(4, 4), **{**every.variants(model)[name], **settings})
    rng = np.random.default_rng(0)
    with tf.Graph().as_default():
        features = FedFeatures(spec, {}, 3)
        prediction = found.model_fn(features, None, ModeKeys.PREDICT, params).predictions["logits"]
        feed = {tensor: rng.normal(size=tensor.shape) for tensor in (*features.placeholders, features.dense)}
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            # As if it had been trained: a linear part starts at 0, where its inputs make no difference.
            session.run([v.assign_add(rng.uniform(0.01, 0.02, v.shape)) for v in tf1.trainable_variables()])
            return session.run(prediction, feed)


@pytest.mark.parametrize("name", MINE)
def test_without_dense_features(name):
    assert np.unique(_logits(name, [USER, ITEM])).size == 3


@pytest.mark.parametrize("name", MINE)
def test_without_sparse_features(name):
    model = name.partition("-")[0]
    if name in ONE_DIM:
        with pytest.raises(UserError, match=f"model {model} needs sparse features, and feature spec 'made' has none"):
            _logits(name, dense=[PRICE])
    elif name in ("final_mlp-context", "pepnet"):
        with pytest.raises(UserError, match=f"model {model}: there is no sparse feature 'user'"):
            _logits(name, dense=[PRICE])
    else:
        assert np.unique(_logits(name, dense=[PRICE])).size > 1


@pytest.mark.parametrize("name", MINE)
def test_embeddings_of_several_dims(name):
    sparse = [USER, {**ITEM, "dim": 6}]
    if name in ONE_DIM:
        model = name.partition("-")[0]
        message = rf"model {model} needs .* has several \(dim4: user; dim6: item\): .* embedding_dim=4"
        with pytest.raises(UserError, match=message):
            _logits(name, sparse, [PRICE])
    else:
        assert np.unique(_logits(name, sparse, [PRICE])).size == 3


@pytest.mark.parametrize("name", ["fibinet-all", "pnn", "dlrm"])
def test_pairs_need_two_features(name):
    with pytest.raises(UserError, match="needs at least 2 sparse features, and the feature spec has 1"):
        _logits(name, [USER])


def test_ffms_dim_is_a_vector_for_each_field():
    sparse = [USER, ITEM, dict(name="place", column="place", dim=4)]
    with pytest.raises(UserError, match="each of the 3 sparse features, and 3 does not divide 4 floats: .*_dim=3 t"):
        _logits("ffm", sparse)
    assert np.unique(_logits("ffm", [{**each, "dim": 6} for each in sparse])).size == 3


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid"])
def test_every_activation_is_one(activation):
    assert np.isfinite(_logits("wide_deep", [USER], activation=activation)).all()


@pytest.mark.parametrize(
    ("model", "text", "problem"),
    [
        (dcn_v2, "cross_layer=3", "there is no 'cross_layer'"),
        (dcn_v2, "cross_layers=-1", "must be at least 1"),
        (dcn_v2, "experts=4", "the experts are low-rank, so give cross_rank too"),
        (dcn_v2, "structure=beside", "choose one of stacked, parallel"),
        (fibinet, "bilinear=some", "choose one of all, each, interaction"),
        (masknet, "reduction=0", "must be above 0"),
        (final_mlp, "heads=3", "must divide the streams' last widths, 64"),
        (final_mlp, "gate_units=0", "must be at least 1"),
    ],
)
def test_a_wrong_value_is_refused(model, text, problem):
    with pytest.raises(UserError, match=problem):
        param_texts.parse("model", model.Params, [text], {})


def test_every_model_is_tested():
    assert {name.partition("-")[0] for name in every.VARIANTS} == set(MODELS)


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
    message = r"model=esmm: \d+ of \d+ examples with clicked = 1 have bought = 0, in a batch on"
    with pytest.raises(UserError, match=message):
        turned.train(lambda: every.reader("esmm", data[2]), max_steps=5)
