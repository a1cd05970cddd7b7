"""An exported graph against `predict`, from raw values, in a process that does not know this package."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.export.saved_model import load_figure, load_spec
from ctr_trainer.features.columns import TYPICAL
from ctr_trainer.models import lr
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from tests import small, small_served
from tests.constant import CONSTANT

SERVE = """
import json, sys
import numpy as np
import tensorflow as tf

rows = json.load(open("rows.json"))
for path in sys.argv[1:]:
    signature = tf.saved_model.load(path).signatures["serving_default"]
    inputs, asked = {}, signature.structured_input_signature[1]
    for name, values in rows.items():
        if name not in asked:
            continue
        if isinstance(values[0], list):
            longest = max(map(len, values))
            values = [value + [""] * (longest - len(value)) for value in values]
        inputs[name] = tf.constant(np.float32(values) if isinstance(values[0], float) else values)
    assert sorted(inputs) == sorted(asked)
    np.save(path + ".npy", signature(**inputs)["probabilities"].numpy())
assert not any(name.startswith("ctr_trainer") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    distributed.init()
    directory = tmp_path_factory.mktemp("export")
    data = small.make(directory, rows=600)
    small_served.write(directory)
    return directory, data


@pytest.fixture(scope="module")
def estimators(trained, tmp_path_factory):
    """By name, an Estimator that is trained on the data."""
    found = {}
    for name, model_fn in (("lr", lr.model_fn), ("history", small_served.model_fn)):
        settings = dict(batch_norm=True, negative_sampling=0.5)  # Both are other in an export than in training.
        params = ModelParams(TrainOp("adagrad", 0.1, 0.3, **CONSTANT), hidden_units=(8,), **settings)
        config = RunConfig(threads=1, embedding=EmbeddingConfig(row_dtype="int8" if name == "history" else "float32"))
        found[name] = Estimator(model_fn, tmp_path_factory.mktemp(name) / "model", params, config)
        found[name].train(lambda: BatchReader(trained[1], 32, epochs=2))
    return found


def _raw(path):
    """Returns the raw values of a CSV file of tests/small.py, by column."""
    found = small_served.examples(path, missing=float("nan"))
    return {name: [example[name] for example in found] for name in found[0]}


def test_an_export_gives_predicts_numbers_and_asks_for_what_the_model_reads(trained, estimators, tmp_path):
    directory, _ = trained
    paths = {name: estimator.export_to(tmp_path / name) for name, estimator in estimators.items()}
    (tmp_path / "rows.json").write_text(json.dumps(_raw(directory / "served.csv")))
    serve = [sys.executable, "-c", SERVE, *paths.values()]
    subprocess.run(serve, check=True, cwd=tmp_path, env={"PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}, timeout=600)
    for name, path in paths.items():
        predicted = estimators[name].predict(lambda: BatchReader(directory / "served", 32, shuffle=False, epochs=1))
        expected = np.array([example["probabilities"] for example in predicted])
        assert len(expected) == 100
        np.testing.assert_allclose(np.load(f"{path}.npy"), expected, atol=1e-6, rtol=0)
        assert expected.std() > 0.02  # different rows get different predictions
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            asked = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"].inputs
        assert ("history" in asked) == (name == "history")
        assert set(load_figure(path, TYPICAL)) == {"place", "device"}
        spec = load_spec(path)
        assert {f.column for f in (*spec.dense, *spec.sparse)} == asked.keys()


class _Fed(tf.compat.v1.train.SessionRunHook):
    """Keeps what the graph of a prediction was fed with, by the names of a dense tower's inputs."""

    NAMES = {
        "embedding/dim4": "embedding_dim4",
        "linear/dim4": "linear_dim4",
        "sequence/history": "sequence_history_dim4",
        "sequence_mask/history": "mask_history",
        "dense": "dense",
    }

    def __init__(self):
        self.batches = []

    def before_run(self, context):
        graph = context.session.graph
        tensors = {name: graph.get_tensor_by_name(f"{tensor}:0") for name, tensor in self.NAMES.items()}
        return tf.compat.v1.train.SessionRunArgs(tensors)

    def after_run(self, context, values):
        fed = values.results
        prices, ages = fed.pop("dense").T
        self.batches.append({**fed, "price": prices, "age": ages})


def test_the_dense_tower_alone_takes_the_rows_as_inputs(trained, estimators, tmp_path):
    (directory, _), estimator, fed = trained, estimators["history"], _Fed()
    path = estimator.export_to(tmp_path / "tower", rows="none")
    served = BatchReader(directory / "served", 32, shuffle=False, epochs=1)
    (first, *_) = estimator.predict(lambda: served, hooks=[fed], yield_single_examples=False)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        assert sorted(signature.inputs) == sorted(fed.batches[0])
        feed = {tensor.name: fed.batches[0][name] for name, tensor in signature.inputs.items()}
        found = session.run(signature.outputs["probabilities"].name, feed)
        assert not [each for each in tf.compat.v1.global_variables() if "export_" in each.name]
    np.testing.assert_allclose(found, first["probabilities"], atol=1e-6, rtol=0)
    assert found.std() > 0.02 and fed.batches[0]["linear/dim4"].any()
    assert [f.name for f in load_spec(path).sparse] == [f.name for f in served.spec.sparse]


@pytest.mark.parametrize("name", ["lr", "history"])
def test_the_dense_tower_turns_raw_values_into_the_keys_of_its_rows(trained, estimators, tmp_path, name):
    directory, data = trained
    path = estimators[name].export_to(tmp_path / "tower", rows="none")
    served = BatchReader(directory / "served", 128, shuffle=False, epochs=1)
    (batch, *_) = served.with_statistics(BatchReader(data, 32).statistics)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def["keys"]
        feed = {}
        for feature, tensor in signature.inputs.items():
            values = _raw(directory / "served.csv")[feature]
            if isinstance(values[0], list):
                longest = max(map(len, values))
                values = [value + [""] * (longest - len(value)) for value in values]
            feed[tensor.name] = values
        found = session.run({name: tensor.name for name, tensor in signature.outputs.items()}, feed)
    np.testing.assert_array_equal(found["keys/dim4"], batch.keys["dim4"][:100])
    bags = {"tags", "topics", "words"} | ({"history"} if name == "history" else set())
    assert {output.partition("/")[2] for output in found} == {"dim4", *bags}
    for bag in bags:
        splits = batch.bags[bag].splits[:101]
        np.testing.assert_array_equal(found[f"splits/{bag}"], splits)
        np.testing.assert_array_equal(found[f"values/{bag}"], batch.bags[bag].values[: splits[-1]])
    np.testing.assert_array_equal(found["weights/topics"], batch.bags["topics"].weights[: len(found["values/topics"])])
    assert found["splits/words"].dtype == np.int32 and "weights/tags" not in found
