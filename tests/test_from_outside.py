"""A model, a metric and an optimizer of a user's own module, which the package does not know."""

import json

import numpy as np
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.estimator.checkpoint import latest_checkpoint
from tests import small

MINE = """
import tensorflow as tf

from ctr_trainer.estimator import EstimatorSpec, ModeKeys
from ctr_trainer.layers.linear import linear
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
