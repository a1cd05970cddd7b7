"""Raw columns that an export reads itself: times, numbers, and texts of several features, ranked too."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.export.raw_inputs import columns_of
from ctr_trainer.export.receivers import ExportedFeatures, RowInputs
from ctr_trainer.export.saved_model_evaluation import read_raw
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models.layers.inputs import all_field_embeddings
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
ROWS = 300
SPEC = FeatureSpec.from_dict(
    {
        "name": "raw",
        "label": {"column": "y"},
        "csv": {"null_values": ["", "-"]},
        "dense": [{"name": "amount", "column": "count", "transform": "log1p", "default": 7.0}],
        "sparse": [
            {"name": "hour", "column": "at", "dim": 2, "derive": "hour"},
            {"name": "weekday", "column": "at", "dim": 2, "derive": "weekday", "missing": "zero"},
            {"name": "weekend", "column": "at", "dim": 2, "derive": "weekend"},
            {"name": "level", "column": "count", "dim": 2, "derive": "log_squared"},
            {"name": "count_id", "column": "count", "dim": 2},
            {"name": "tags", "dim": 2, "combiner": "sum", "brackets": True},
            {"name": "whole", "column": "kinds", "dim": 2},
            {"name": "kinds", "dim": 2, "combiner": "mean"},
            {"name": "parts", "column": "kinds", "dim": 2, "combiner": "sqrtn", "separator": "-", "max_length": 2},
            {"name": "set", "column": "listed", "dim": 2, "combiner": "sum", "brackets": True},
            {"name": "listed", "dim": 2},
            {"name": "steps", "column": "count", "dim": 2, "buckets": [0, 5]},
        ],
        "cross": [
            {"columns": ["hour", "whole"], "dim": 2},
            {"columns": ["steps", "whole", "weekday"], "dim": 2, "slot": "steps", "max_rows": 50},
        ],
    }
)
FORMS = (
    "2024-01-{day:02} {hour:02}:30:00",
    "2024-01-{day:02}T{hour:02}:59:59.9+01:00",
    "170{day:02}00{hour:02}0",
    "-",
    "",
)
COUNTS = ("-", "-1", "0", "4", "1000", "12.0")
PIECES = FeatureSpec.from_dict(
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


def _run(session, signature, inputs):
    feed = {signature.inputs[name].name: values for name, values in inputs.items()}
    return session.run(signature.outputs["probabilities"].name, feed)


@contextlib.contextmanager
def _served(path, spec, model, train_op, epochs):
    """Trains a model on a converted CSV file, exports it, and asserts that the export gives `predict`'s numbers.

    Yields (session, signatures of the export, raw values of the file by column, the probabilities).
    """
    distributed.init()
    found, data = find_model(model), path.parent / "data"
    if not data.exists():
        convert("csv", path, data, spec, progress=False)
    directory = path.parent / model
    params = found.params_class(train_op, hidden_units=(8,))
    estimator = Estimator(found.model_fn, directory / "model", params, RunConfig(threads=1))
    estimator.train(lambda: BatchReader(data, 32, epochs=epochs))
    predicted = estimator.predict(lambda: BatchReader(data, 32, shuffle=False, epochs=1))
    expected = np.array([example["probabilities"] for example in predicted])
    (raw,) = read_raw("csv", path, spec, ROWS)
    with tf.Graph().as_default(), tf1.Session() as session:
        signatures = tf1.saved_model.load(session, ["serve"], estimator.export_to(directory / "export")).signature_def
        served = _run(session, signatures["serving_default"], raw.inputs)
        np.testing.assert_allclose(served, expected, atol=1e-6, rtol=0)
        yield session, signatures, raw.inputs, expected


def test_an_export_takes_each_raw_column_once_and_gives_predicts_numbers(tmp_path):
    rng, lines = np.random.default_rng(0), []
    for i in range(ROWS):
        day, hour = int(rng.integers(1, 29)), int(rng.integers(0, 24))
        tags = [f"t{tag}" for tag in rng.integers(0, 9, rng.integers(0, 4))]
        at = FORMS[i % 5].format(day=day, hour=hour)
        kinds = ("a|b-c", "-", "", "b", "a-a|c-b|d")[i % 5]
        lines.append(f'{hour // 12 ^ (day % 7 > 4)},{at},{COUNTS[i % 6]},"{tags}",{kinds},"{tags[:2]}"\n')
    (tmp_path / "a.csv").write_text("y,at,count,tags,kinds,listed\n" + "".join(lines))
    with _served(tmp_path / "a.csv", SPEC, "deepfm", TrainOp("adagrad", 0.1, 0.5), epochs=3) as found:
        session, signatures, raw, expected = found
        assert set(raw) == {"at", "count", "tags", "kinds", "listed"} == signatures["serving_default"].inputs.keys()
        assert "".join(sorted({value.decode() for value in raw["tags"].ravel()})) == "t0t1t2t3t4t5t6t7t8"
        assert expected.std() > 0.02
        for context in ({"at", "kinds"}, {"count", "listed", "tags"}):
            ranked = {name: values[:1] if name in context else values[:9] for name, values in raw.items()}
            expanded = {name: np.repeat(values, 9 // len(values), 0) for name, values in ranked.items()}
            wanted = _run(session, signatures["serving_default"], expanded)
            np.testing.assert_allclose(_run(session, signatures["ranking"], ranked), wanted, atol=1e-6, rtol=0)


def test_a_column_of_weights_that_another_feature_reads_whole_is_refused():
    sparse = [{"name": "topics", "dim": 2, "combiner": "sum", "weight_separator": ":"}]
    sparse.append({"name": "whole", "column": "topics", "dim": 2})
    spec = FeatureSpec.from_dict({"name": "s", "label": {"column": "y"}, "sparse": sparse})
    with pytest.raises(UserError, match="column 'topics': topics, whole read it, and not all as weighted values"):
        columns_of(spec)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A CSV whose label is 1 for prices in the middle, which no function of the price itself that rises can say."""
    path, rng, lines = tmp_path_factory.mktemp("pieces") / "a.csv", np.random.default_rng(0), []
    for i in range(ROWS):
        price = rng.uniform(0, 10)
        shown = "" if i % 10 == 0 else f"{price:.3f}"
        lines.append(f"{int(3 < price < 6)},{shown},{i % 50},7,{i % 3},u{i % 4},i{i % 5}\n")
    path.write_text("y,price,age,always,count,user,item\n" + "".join(lines))
    return path


@pytest.mark.parametrize("model", ["deepfm", "autoint"])
def test_an_export_of_numbers_in_pieces_gives_predicts_numbers_and_ranks(path, model):
    with _served(path, PIECES, model, TrainOp("adam", 0.02, 0.02), epochs=12) as (session, signatures, raw, expected):
        for context in ({"price", "user"}, {"age", "always"}, {"count"}):
            ranked = {name: values[:1] if name in context else values[:9] for name, values in raw.items()}
            expanded = {name: np.repeat(values, 9 // len(values), 0) for name, values in ranked.items()}
            wanted = _run(session, signatures["serving_default"], expanded)
            np.testing.assert_allclose(_run(session, signatures["ranking"], ranked), wanted, atol=1e-6, rtol=0)
    price = raw["price"]
    middle, high = expected[(3.5 < price) & (price < 5.5)].mean(), expected[price > 7].mean()
    assert middle > expected[price < 2.5].mean() + 0.2 and middle > high + 0.2


def test_the_columns_of_a_number_are_one_field():
    fitted = {"mean": 0.0, "std": 1.0, "min": 0.0, "max": 8.0, "boundaries": [2.0, 4.0]}
    statistics = {f.name: fitted for f in PIECES.dense} | {"always": {**fitted, "max": 0.0, "boundaries": []}}
    with tf.Graph().as_default(), tf1.Session() as session:
        features = FedFeatures(PIECES, statistics, None)
        assert features.dense_widths == [3, 1, 1, 3]
        fields = all_field_embeddings(features, "mine")
        (vectors,) = tf1.trainable_variables()
        session.run(tf1.global_variables_initializer())
        (rows,) = features.placeholders
        feed = {features.dense: [[3.0, -2.0, 5.0, 8.0]], rows: np.ones([1, 2, 4])}
        found, v = session.run([fields, vectors], feed)
    wanted = [np.ones(4), np.ones(4), v[0] + 0.5 * v[1], -2 * v[3], 0 * v[4], v[5] + v[6] + v[7]]
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)


def test_examples_of_an_exported_graph_have_no_weights():
    with tf.Graph().as_default():
        for features in ExportedFeatures(SPEC, None, {}), RowInputs(SPEC, None):
            with pytest.raises(KeyError, match="no feature 'weight': an exported graph only predicts"):
                features["weight"]
