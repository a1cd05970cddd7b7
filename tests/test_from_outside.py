"""A model, a metric and optimizers of a user's own, which the package does not know."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS, with_plugins
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.docs import page
from tests.parallel import launch

MINE = """
import tensorflow as tf

from ctr_trainer.estimator import EstimatorSpec, ModeKeys
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.head import cross_entropy

tf1 = tf.compat.v1


class BySign(tf1.train.Optimizer):
    '''w -= lr sign(g)'''

    def __init__(self, learning_rate):
        super().__init__(False, "BySign")
        self._rate = learning_rate

    def _resource_apply_dense(self, gradient, variable):
        return variable.assign_sub(self._rate * tf.sign(gradient))

    _apply_dense = _resource_apply_dense


def model_fn(features, labels, mode, params):
    price = features["dense"][:, 0]
    slope = tf1.get_variable("slope", [], initializer=tf1.zeros_initializer(), use_resource=True)
    logits = linear(features)[:, 0] + slope * price
    predictions = {"logits": logits, "probabilities": tf.sigmoid(logits)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    loss = cross_entropy(labels, logits, features["weight"])
    highest = tf1.metrics.mean(tf.reduce_max(price))
    return EstimatorSpec(
        mode,
        predictions,
        loss,
        optimizer=BySign(0.25) if mode == ModeKeys.TRAIN else None,
        eval_metric_ops={"highest_price": highest},
    )
"""


def test_a_model_a_metric_and_an_optimizer_need_no_change_of_the_package(tmp_path, monkeypatch, capsys):
    data = small.make(tmp_path / "small", rows=64)
    (tmp_path / "mine_from_outside.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    model_dir = tmp_path / "model"
    of_model = ["--model=mine_from_outside:model_fn", f"--model_dir={model_dir}", "--batch_size=32", "--threads=1"]
    assert cli.main(["train", *of_model, f"--train_data={data}", "--max_steps=1"]) == 0
    slope = tf.train.load_variable(latest_checkpoint(model_dir).dense_prefix, "slope")
    assert abs(slope) == np.float32(0.25)
    capsys.readouterr()
    assert cli.main(["evaluate", *of_model, f"--eval_data={data}"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < found["highest_price"] <= np.log1p(20) + 1e-6
    assert 0 < found["auc"] < 1


@pytest.mark.integration
def test_an_optimizer_of_another_package_trains_on_two_workers(tmp_path, monkeypatch):
    """The page's own: both workers and the service's process find it by its entry points."""
    text = (page.DOCS / "sparse_optimizers.md").read_text()
    packages = tmp_path / "packages"
    (packages / "lion").mkdir(parents=True)
    (packages / "lion-1.0.dist-info").mkdir()
    (packages / "lion-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lion\nVersion: 1.0\n")
    settings, steps = page.blocks(text, "python")
    (packages / "lion" / "settings.py").write_text(settings)
    (packages / "lion" / "steps.py").write_text(steps)
    (declared,) = page.blocks(text, "toml")
    points = declared.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    (packages / "lion-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(packages))
    for known, group in ((ROW_OPTIMIZERS, "ctr_trainer.row_optimizers"), (OPTIMIZERS, "ctr_trainer.row_steps")):
        monkeypatch.setitem(known, "lion", with_plugins({}, group)["lion"])
        with pytest.raises(UserError, match=f"lion = lion.*, an entry point of {group} that lion has, has the name of"):
            with_plugins({"lion": None}, group)

    data, rate = small.make(tmp_path / "small", rows=64), 0.25
    flags = ["--batch_size=16", "--hidden_units=4", "--max_steps=2", "--embedding_stddev=0"]
    flags += ["--embedding_optimizer=lion", f"--embedding_learning_rate={rate}", "--scale_lr=none"]
    flags += ["--embedding_optimizer_params=mean_beta=0.5"]
    model_dir = tmp_path / "model"
    launch.run(
        2, "-m", "ctr_trainer", "train", f"--train_data={data}", f"--model_dir={model_dir}", *flags, is_warm=False
    )
    saved = latest_checkpoint(model_dir)
    blocks = list(snapshot.iterate(saved.path, saved.tables))
    (config, *_), rows = blocks[0], np.concatenate([rows for *_, rows in blocks])
    assert (config.optimizer.name, config.optimizer.mean_beta) == ("lion", 0.5)
    steps, means = rows[:, : config.weights] / rate, rows[:, config.weights :]
    assert steps.shape == means.shape
    np.testing.assert_array_equal(steps, np.round(steps))  # Each step of a weight is by the rate, up or down.
    assert 0 < np.abs(steps).max() <= 2 * 2 and np.abs(means).max() > 0
