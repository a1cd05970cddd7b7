"""Numbers in pieces (`transform = "piecewise_linear"`): training, serving of raw values, and ranking requests."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.layers.inputs import all_field_embeddings
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.serving.export.saved_model_evaluation import read_raw

tf1 = tf.compat.v1
SPEC = FeatureSpec.from_dict(
    {
        "name": "pieces",
        "label": {"column": "y"},
        "dense": [
            {"name": "price", "transform": "piecewise_linear", "pieces": 6, "default": 3.0},
            {"name": "age", "transform": "standardize"},
            {"name": "always", "transform": "piecewise_linear", "pieces": 6},
            {"name": "count", "transform": "piecewise_linear", "pieces": 6},
        ],
        "sparse": [{"name": "user", "dim": 4}, {"name": "item", "dim": 4}],
    }
)
ROWS = 300


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A CSV whose label is 1 for prices in the middle, which no function of the price itself that rises can say."""
    path, rng, lines = tmp_path_factory.mktemp("pieces") / "a.csv", np.random.default_rng(0), []
    for i in range(ROWS):
        price = rng.uniform(0, 10)
        shown = "" if i % 10 == 0 else f"{price:.3f}"
        lines.append(f"{int(3 < price < 6)},{shown},{i % 50},7,{i % 3},u{i % 4},i{i % 5}\n")
    path.write_text("y,price,age,always,count,user,item\n" + "".join(lines))
    convert("csv", path, path.parent / "data", SPEC, progress=False)
    return path


@pytest.mark.parametrize("model", ["lr", "deepfm", "tabm", "autoint"])
def test_an_export_gives_predicts_numbers_of_raw_values_and_ranks_by_them(path, tmp_path, model):
    distributed.init()
    found, data = find_model(model), path.parent / "data"
    params = found.params_class(TrainOp("adam", 0.02, 0.02), hidden_units=(8,))
    estimator = Estimator(found.model_fn, tmp_path / "model", params, RunConfig(threads=1))
    estimator.train(lambda: BatchReader(data, 32, epochs=12))
    predicted = estimator.predict(lambda: BatchReader(data, 32, shuffle=False, epochs=1))
    expected = np.array([example["probabilities"] for example in predicted])
    (raw,) = read_raw("csv", path, SPEC, ROWS)
    with tf.Graph().as_default(), tf1.Session() as session:
        signatures = tf1.saved_model.load(session, ["serve"], estimator.export_to(tmp_path / "export")).signature_def
        served = _run(session, signatures["serving_default"], raw.inputs)
        np.testing.assert_allclose(served, expected, atol=1e-6, rtol=0)
        for context in ({"price", "user"}, {"age", "always"}, {"count"}):
            ranked = {name: values[:1] if name in context else values[:9] for name, values in raw.inputs.items()}
            expanded = {name: np.repeat(values, 9 // len(values), 0) for name, values in ranked.items()}
            wanted = _run(session, signatures["serving_default"], expanded)
            np.testing.assert_allclose(_run(session, signatures["ranking"], ranked), wanted, atol=1e-6, rtol=0)
    price = raw.inputs["price"]
    middle, high = expected[(3.5 < price) & (price < 5.5)].mean(), expected[price > 7].mean()
    assert middle > expected[price < 2.5].mean() + 0.2 and middle > high + 0.2


def _run(session, signature, inputs):
    feed = {signature.inputs[name].name: values for name, values in inputs.items()}
    return session.run(signature.outputs["probabilities"].name, feed)


def test_the_columns_of_a_number_are_one_field():
    fitted = {"mean": 0.0, "std": 1.0, "min": 0.0, "max": 8.0, "boundaries": [2.0, 4.0]}
    statistics = {f.name: fitted for f in SPEC.dense} | {"always": {**fitted, "max": 0.0, "boundaries": []}}
    with tf.Graph().as_default(), tf1.Session() as session:
        features = FedFeatures(SPEC, statistics, None)
        assert features.dense_widths == [3, 1, 1, 3]
        fields = all_field_embeddings(features, "mine")
        (vectors,) = tf1.trainable_variables()
        session.run(tf1.global_variables_initializer())
        (rows,) = features.placeholders
        feed = {features.dense: [[3.0, -2.0, 5.0, 8.0]], rows: np.ones([1, 2, 4])}
        found, v = session.run([fields, vectors], feed)
    wanted = [np.ones(4), np.ones(4), v[0] + 0.5 * v[1], -2 * v[3], 0 * v[4], v[5] + v[6] + v[7]]
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)
