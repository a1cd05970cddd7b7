"""What an export takes when its table is large: of a request's memory, and of its own."""

import dataclasses
import math
import pathlib
import shutil

import numpy as np
import psutil
import pytest
import tensorflow as tf

from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.snapshot import snapshot_writer
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.export.saved_model import export_saved_model
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from tests import small

tf1 = tf.compat.v1
REQUEST = {name: [name] for name in ("user", "item", "place", "device")}
REQUEST |= {name: [[name, "b"]] for name in ("tags", "topics", "words")}
REQUEST |= {name: [1.0] for name in ("price", "age")}


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    distributed.init()
    directory = tmp_path_factory.mktemp("large")
    data = small.make(directory, rows=100)
    trained = Estimator(
        deepfm.model_fn, directory / "model", ModelParams(TrainOp(), hidden_units=(8,)), RunConfig(threads=1)
    )
    trained.train(lambda: BatchReader(data, 50, epochs=1, dim=32))
    return trained


def _with_rows(checkpoint, path, rows):
    """Returns a copy of the checkpoint that has this number of random keys instead of its own."""
    (config,) = checkpoint.table_configs().values()
    table = Table(config, tracked=True)
    for keys in np.array_split(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, rows), 20):
        table.find_or_create(keys)
    path.mkdir()
    files = snapshot_writer.write(path, table.changes.begin(table, full=True), table, "large", None, 1)
    for entry in checkpoint.dense:
        shutil.copy(pathlib.Path(checkpoint.path) / entry["file"], path)
    return dataclasses.replace(checkpoint, path=str(path), tables=files)


def _elements(path):
    """Returns a dict of operation -> number of elements of its outputs, for all operations that a request runs."""
    with tf.Graph().as_default(), tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        traced = tf1.RunMetadata()
        session.run(
            signature.outputs["probabilities"].name,
            {tensor.name: REQUEST[name] for name, tensor in signature.inputs.items()},
            options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE),
            run_metadata=traced,
        )
    return {
        node.node_name: sum(
            math.prod(dimension.size for dimension in output.tensor_description.shape.dim) for output in node.output
        )
        for device in traced.step_stats.dev_stats
        for node in device.node_stats
    }


def test_no_operation_of_a_request_grows_with_the_table(estimator, tmp_path):
    elements = []
    for rows in (200, 20_000):
        checkpoint = _with_rows(estimator.latest_checkpoint(), tmp_path / f"rows-{rows}", rows)
        path = estimator.export_to(tmp_path / f"export-{rows}", checkpoint_path=checkpoint)
        elements.append(_elements(path))
    small, large = elements
    assert small.keys() == large.keys()
    # The lines of the index widen, from 6 keys to 12 at 20 million.
    assert [name for name in large if large[name] > 2 * small[name]] == []
    assert max(small.values()) > 50  # Shapes are traced at all.


def test_an_export_does_not_hold_the_rows_in_memory(estimator, tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.export.exported_table._BYTES", 4 << 20)
    rows = 500_000
    checkpoint = _with_rows(estimator.latest_checkpoint(), tmp_path / "checkpoint", rows)
    before = psutil.Process().memory_info().rss
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak, VmHWM, begins anew.
    path = pathlib.Path(
        export_saved_model(
            tmp_path / "export", estimator.model_fn, estimator.params, checkpoint, load_features(estimator.model_dir)
        )
    )
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    grown = int(status["VmHWM"].split()[0]) * 1024 - before
    written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert written > rows * 4 * 33
    assert grown < written
