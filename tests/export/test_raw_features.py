"""Raw columns that an export reads itself: times, numbers, and texts of several features, ranked too."""

import contextlib
import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.data.batch import batch_of
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.parquet import ForeignParquet, scan
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.export.raw_inputs import columns_of
from ctr_trainer.export.receivers import ExportedFeatures, RowInputs
from ctr_trainer.export.saved_model import load_spec
from ctr_trainer.export.saved_model_evaluation import read_raw
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.live.stream.messages import MessageDecoder
from ctr_trainer.live.stream.source import Message
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
        "dense": [
            {"name": "amount", "column": "count", "transform": "log1p", "default": 7.0},
            {"name": "since", "column": "joined", "transform": "standardize", "default": 1.5e9},
        ],
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
            {"name": "joined", "dim": 2},
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
        tags = ["-"] if i % 7 == 0 else tags
        kinds = ("a|b-c", "-", "", "b", "a-a|c-b|d", "-|")[i % 6]
        joined = "-" if i % 9 == 0 else f"20{day:02}-02-03"
        lines.append(f'{hour // 12 ^ (day % 7 > 4)},{at},{COUNTS[i % 6]},"{tags}",{kinds},"{tags[:2]}",{joined}\n')
    (tmp_path / "a.csv").write_text("y,at,count,tags,kinds,listed,joined\n" + "".join(lines))
    with _served(tmp_path / "a.csv", SPEC, "deepfm", TrainOp("adagrad", 0.1, 0.5), epochs=3) as found:
        session, signatures, raw, expected = found
        names = {"at", "count", "tags", "kinds", "listed", "joined"}
        assert set(raw) == names == signatures["serving_default"].inputs.keys()
        assert "".join(sorted({value.decode() for value in raw["tags"].ravel()})) == "-t0t1t2t3t4t5t6t7t8"
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


LOOKUPS = """
name = "looked_up"
[label]
column = "y"
[csv]
null_values = ["", "-"]
[defaults]
dim = 4
[[dense]]
name = "price"
default = 3.0
[[dense]]
columns = ["vector1..vector3", "amount"]
[[sparse]]
columns = ["item", "maker"]
[[sparse]]
name = "level"
column = "price"
buckets = [2, 5]
[[sparse]]
name = "genres"
combiner = "mean"
[[sparse]]
name = "month"
column = "released"
derive = "weekday"
missing = "zero"
[[cross]]
columns = ["maker", "level"]
[[lookup]]
name = "price"
file = "prices.csv"
key = "item"
file_key = "id"
[[lookup]]
name = "genres"
file = "items.parquet"
key = "item"
[[lookup]]
name = "released"
file = "items.parquet"
key = "item"
[[lookup]]
name = "vector"
file = "items.parquet"
key = "item"
length = 3
[[lookup]]
name = "maker"
file = "makers.csv"
key = "amount"
value = "name"
"""


@pytest.fixture(scope="module")
def looked_up(tmp_path_factory):
    """Returns the paths of a CSV file and of a spec with lookups by its items and amounts."""
    directory, rng = tmp_path_factory.mktemp("lookups"), np.random.default_rng(0)
    (directory / "spec.toml").write_text(LOOKUPS)
    prices = {item: rng.uniform(0, 9) for item in range(10)}
    numbered = "".join(f"{item},{'' if item == 3 else price:.3f}\n" for item, price in prices.items() if item != 3)
    (directory / "prices.csv").write_text(f"id,price\n3,\n{numbered}")
    (directory / "makers.csv").write_text('amount,x,name\n1,0,"a,b"\n2,0,\n3,0,c\n')
    items = pa.array([*range(8), 11], pa.int64())
    vectors = pa.array(rng.normal(size=(9, 3)).tolist(), pa.list_(pa.float64(), 3))
    genres = ["a|b", "", None, "c", "a", "b|c|d", "a", "b", "z"]
    released = [datetime.date(2024, 1, 1 + day) for day in range(9)]
    table = pa.table({"item": items, "genres": genres, "released": released, "vector": vectors})
    pq.write_table(table, directory / "items.parquet")
    lines = [f"{int(rng.random() < prices[i % 10] / 9)},{i % 12 if i % 11 else '-'},{i % 5}\n" for i in range(ROWS)]
    (directory / "a.csv").write_text("y,item,amount\n" + "".join(lines))
    return directory / "a.csv", directory / "spec.toml"


def test_lookups_are_the_same_in_data_streams_requests_and_exports(looked_up):
    path, spec = looked_up[0], FeatureSpec.load(looked_up[1])
    with _served(path, spec, "deepfm", TrainOp("adagrad", 0.1, 0.5), epochs=3) as found:
        session, signatures, raw, expected = found
        assert set(raw) == {"item", "amount"} == signatures["serving_default"].inputs.keys()
        ranked = {"item": raw["item"][:9], "amount": raw["amount"][:1]}
        wanted = _run(session, signatures["serving_default"], {**ranked, "amount": np.repeat(ranked["amount"], 9)})
        np.testing.assert_allclose(_run(session, signatures["ranking"], ranked), wanted, atol=1e-6, rtol=0)
    data = open_dataset(path.parent / "data")
    for kept in (data.spec, load_spec(path.parent / "deepfm/export"), load_features(path.parent / "deepfm/model")[0]):
        assert kept == spec and [each.file for each in kept.lookup] != [each.file for each in spec.lookup]
        assert [each.read() for each in kept.lookup] == [each.read() for each in spec.lookup]
    rows = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(null_values=["-"]))
    assert rows["item"].type == pa.int64()
    pq.write_table(rows, path.parent / "a.parquet")
    messages = [Message(0, at, 1.0, json.dumps(row).encode()) for at, row in enumerate(rows.to_pylist())]
    decoded = MessageDecoder(spec, data.statistics, "kafka topic clicks").decode(messages).rows
    source = ForeignParquet(scan(str(path.parent / "a.parquet"), spec), spec, data.statistics)
    converted, direct, streamed = [
        *BatchReader(path.parent / "data", ROWS, shuffle=False, epochs=1),
        *BatchReader(source, ROWS, shuffle=False, epochs=1),
        batch_of(decoded, ROWS),
    ]
    for batch in (direct, streamed):
        np.testing.assert_array_equal(batch.dense, converted.dense)
        np.testing.assert_array_equal(batch.keys["dim4"], converted.keys["dim4"])
        np.testing.assert_array_equal(batch.bags["genres"].values, converted.bags["genres"].values)
    item = rows["item"].to_numpy()
    is_priced = (item < 10) & (item != 3)
    assert (np.isnan(converted.dense[:, 0]) != is_priced).all() and np.isnan(converted.dense[item == 8, 1]).all()
    assert len(np.unique(converted.dense[is_priced, 0])) == 9
