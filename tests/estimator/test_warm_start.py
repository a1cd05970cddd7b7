"""A new training begins with the rows and dense variables of another model, and says what it took."""

import collections
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ctr_trainer.checkpoint.warm_start import warm_start_of
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator import Estimator, EstimatorSpec, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.messages.errors import UserError
from tests.checkpoints import rows_by_key
from tests.constant import CONSTANT
from tests.estimator import deepfm

TABLE = "dim4"


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):
    """The directory of a trained model."""
    path = tmp_path_factory.mktemp("other") / "model"
    _train(path, data, steps=12)
    return path


def _estimator(path, warm_start="", optimizer="adagrad", hidden=(8,)):
    embedding = EmbeddingConfig(optimizer=optimizer)
    return deepfm.estimator(path, hidden_units=hidden, warm_start=str(warm_start), embedding=embedding)


def _train(path, data, steps=1, dim=None, **settings):
    estimator = _estimator(path, **settings)
    return estimator, estimator.train(lambda: BatchReader(data, 16, dim=dim), max_steps=steps).last_training


def _rows(checkpoint):
    """Returns (TableConfig, dict of key -> row) for the only table of a checkpoint."""
    (config,) = checkpoint.table_configs().values()
    assert config.name == TABLE
    return config, rows_by_key(checkpoint)


def _variables(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint.dense_prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != "global_step"}


def test_rows_and_variables_of_another_model_are_what_training_begins_with(other, data, tmp_path, caplog):
    before = _estimator(other).latest_checkpoint()
    with caplog.at_level(logging.INFO):
        estimator, result = _train(tmp_path / "model", data, warm_start=other)
    config, rows_there = _rows(before)
    rows = _rows(estimator.latest_checkpoint())[1]
    assert rows.keys() == rows_there.keys()
    unchanged = sum(np.array_equal(rows[key], rows_there[key]) for key in rows)
    assert 0 < unchanged < len(rows)  # Weights and state, of all but the rows of the one step.
    variables, there = _variables(estimator.latest_checkpoint()), _variables(before)
    assert variables.keys() == there.keys()
    moved = max(float(np.abs(variables[name] - there[name]).max()) for name in variables)
    assert 0 < moved < 0.2  # One step away; initial values are several times as far.
    said = result["warm_start"]
    assert said["rows"] == {TABLE: len(rows_there)} and said["step"] == 12
    assert said["variables"] == sorted(there) and said["variables_left"] == said["tables_left"] == []
    assert f"warm start: {len(rows_there)} rows of table {TABLE} from {before.path}" in caplog.text
    assert result["global_step"] == 1  # The schedule begins anew.
    assert not (tmp_path / "model" / "warm_start").exists()


def test_a_start_and_a_resume_report_the_progress_of_rank_0(other, data, tmp_path, monkeypatch):
    said, from_chief = collections.defaultdict(list), distributed.from_chief
    monkeypatch.setattr(
        distributed, "from_chief", lambda work, name: from_chief(lambda _: work(said[name].append), name)
    )
    estimator, _ = _train(tmp_path / "model", data, warm_start=other)
    source = _estimator(other).latest_checkpoint()
    assert f"reading {source}/{source.tables[0]['file']}" in said["warm_start"]
    assert {f"the first rows of {TABLE}", f"restoring table {TABLE}"} <= set(said["embedding_rows_restored"])
    said.clear()
    checkpoint = estimator.latest_checkpoint()
    _train(tmp_path / "model", data, steps=2)
    assert f"reading {checkpoint}/{checkpoint.tables[0]['file']}" in said["embedding_rows_restored"]
    assert f"restoring table {TABLE}" in said["embedding_rows_restored"]


def test_a_training_that_goes_on_takes_nothing_again(other, data, tmp_path, caplog):
    _train(tmp_path / "model", data, warm_start=other)
    with caplog.at_level(logging.INFO):
        _, result = _train(tmp_path / "model", data, steps=2, warm_start=other)
    assert "warm_start" not in result
    assert f"warm_start={other} is not read again: the training resumes from" in caplog.text


def test_other_optimizers_and_layers_take_what_fits_and_name_what_is_left(other, data, tmp_path):
    before = _estimator(other).latest_checkpoint()
    estimator, result = _train(tmp_path / "model", data, warm_start=other, optimizer="sgd", hidden=(8, 8))
    config, rows = _rows(estimator.latest_checkpoint())
    there, rows_there = _rows(before)
    assert config.width == there.weights < there.width
    same = sum(np.array_equal(rows[key], rows_there[key][: there.weights]) for key in rows)
    assert 0 < same < len(rows) == len(rows_there)
    said = result["warm_start"]
    assert said["variables"] and said["variables_left"]
    assert set(said["variables"]) | set(said["variables_left"]) == set(_variables(estimator.latest_checkpoint()))


def test_the_moments_of_adam_begin_anew_with_its_count_of_steps(data, tmp_path):
    for name, steps, source in (("other", 12, ""), ("model", 1, tmp_path / "other")):
        train_op = TrainOp("adam", 0.01, 0.1, **CONSTANT)
        estimator = deepfm.estimator(tmp_path / name, train_op, (8,), warm_start=str(source))
        estimator.train(lambda: BatchReader(data, 16), max_steps=steps)
    variables = _variables(estimator.latest_checkpoint())
    moments = {name: value for name, value in variables.items() if name.endswith("/Adam")}
    assert moments
    for name, m in moments.items():  # After the first step they are 0.1 g and 0.001 g ** 2.
        np.testing.assert_allclose(variables[f"{name}_1"], 0.1 * m**2, rtol=1e-3, atol=1e-12)


def _counting_adam_model_fn(features, labels, mode, params):
    w = tf.compat.v1.get_variable("w", [], initializer=tf.ones_initializer())
    return EstimatorSpec(mode, loss=tf.reduce_mean(w * features), optimizer=tf.compat.v1.train.AdamOptimizer())


def test_tensorflow_s_adam_keeps_its_moments_with_its_own_count_of_steps(tmp_path):
    for name, source in (("other", ""), ("model", str(tmp_path / "other"))):
        config = RunConfig(threads=1, warm_start=source)
        estimator = Estimator(_counting_adam_model_fn, tmp_path / name, config=config)
        estimator.train(lambda: tf.data.Dataset.from_tensors(np.ones(4, np.float32)).repeat(), max_steps=2)
    assert estimator.get_variable_value("w/Adam") == pytest.approx(1 - 0.9**4)


def test_other_widths_are_refused(other, data, tmp_path):
    with pytest.raises(UserError, match="has no rows of table dim8, and this model has no table for its dim4"):
        _train(tmp_path / "model", data, warm_start=other, dim=8)
    assert not (tmp_path / "model" / "warm_start").exists()


def test_a_table_of_the_same_name_with_other_dims_is_refused(other):
    found = _estimator(other).latest_checkpoint()
    with pytest.raises(UserError, match=r"table dim4 has dims \[4, 4\] here, and \[4, 1\] in .*step-0000000012"):
        warm_start_of(found.path, None).blocks(TableConfig(TABLE, (4, 4), (0.1, 0.1)))


def _write(path, keys, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64()), "row": pa.array(list(map(list, rows)))}), path)


def test_parquet_files_give_weights_and_the_state_begins_anew(other, data, tmp_path):
    there, rows_there = _rows(_estimator(other).latest_checkpoint())
    keys = sorted(rows_there)
    weights = np.arange(len(keys) * there.weights, dtype=np.float32).reshape(len(keys), -1) / 1000
    half = len(keys) // 2
    _write(tmp_path / "rows" / f"{TABLE}-0.parquet", keys[:half], weights[:half])
    _write(tmp_path / "rows" / TABLE / "part.parquet", keys[half:], weights[half:])
    _write(tmp_path / "rows" / "dim40.parquet", [5], weights[:1])
    estimator, result = _train(tmp_path / "model", data, warm_start=tmp_path / "rows")
    said = result["warm_start"]
    assert said["rows"] == {TABLE: len(keys)} and said["tables_left"] == ["dim40.parquet"]
    rows = _rows(estimator.latest_checkpoint())[1]
    same = [key for i, key in enumerate(keys) if np.array_equal(rows[key][: there.weights], weights[i])]
    assert 0 < len(same) < len(keys)
    assert all((rows[key][there.weights :] == there.optimizer.initial_accumulator).all() for key in same)


ROW = [0.5] * 5


@pytest.mark.parametrize(
    "table, message",
    [
        ({"key": [1], "rows": [ROW]}, "no column 'row'; it has key, rows: expected key and row"),
        ({"key": ["a"], "row": [ROW]}, "key is string and row is list<.*: expected int64 and a list of floats"),
        ({"key": [1, None], "row": [ROW, ROW]}, "row 2: key is null"),
        ({"key": [1, 0], "row": [ROW, ROW]}, "row 2: key is 0"),
        ({"key": [1, 2], "row": [ROW, ROW[1:]]}, "row 2: 4 values; table dim4 has rows of 5 weights"),
        ({"key": [1, 2], "row": [ROW, None]}, "a row among rows 1 to 2 is null"),
        ({"key": [1, 2], "row": [ROW, [float("nan")] * 5]}, "row 2: a value is not finite"),
        ({"key": [7, 8, 7], "row": [ROW] * 3}, "row 3: the key 7 has a row before this one: give each key once"),
    ],
)
def test_parquet_files_with_a_fault_are_refused_by_file_and_row(data, tmp_path, table, message):
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table(table), tmp_path / "rows" / f"{TABLE}.parquet")
    with pytest.raises(UserError, match=rf"{TABLE}\.parquet.*{message}"):
        _train(tmp_path / "model", data, warm_start=tmp_path / "rows")


def test_a_directory_with_nothing_to_begin_with_is_refused(data, tmp_path):
    with pytest.raises(UserError, match="nothing to start from: expected a model directory with a checkpoint"):
        _train(tmp_path / "model", data, warm_start=tmp_path / "none")
