"""A training of one worker that is published: what is at the target in the end is what is in its checkpoint."""

import logging
import threading

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.live.publication import records
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.messages.errors import UserError
from tests import published
from tests.estimator import deepfm

tf1 = tf.compat.v1
TABLE = "dim4"


class Slowly(tf1.train.SessionRunHook):
    """Has steps take a while, so that epochs are published between them."""

    def __init__(self, seconds):
        self._event, self._seconds = threading.Event(), seconds

    def after_run(self, run_context, run_values):
        self._event.wait(self._seconds)


def _estimator(path, to, **settings):
    return deepfm.estimator(path, publish=PublishConfig(to=str(to), **settings))


def test_the_target_has_in_the_end_what_the_checkpoint_has(data, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    estimator = _estimator(tmp_path / "model", tmp_path / "to", secs=0.2)
    results = []
    for last in (30, 60):  # The second training begins another generation.
        estimator.train(lambda: BatchReader(data, 16, epochs=None), [Slowly(0.03)], max_steps=last)
        results.append(estimator.last_training)
        found, record, _ = published.state(tmp_path / "to")
        checkpoint = estimator.latest_checkpoint()
        expected = published.weights_of(snapshot.iterate(checkpoint.path, checkpoint.tables))
        assert found == expected and len(found[TABLE]) > 100
        assert record.global_step == checkpoint.step == last
        assert (record.inputs["user"], record.inputs["history"]) == ("text", "")  # DeepFM reads no sequence.
        estimator.export_to(tmp_path / "export", rows="none")
        trained, served = (
            tf.train.load_checkpoint(str(path / "variables" / "variables"))
            for path in (
                tmp_path / "export",
                records.generation_path(tmp_path / "to", record.generation) / record.dense,
            )
        )
        names = trained.get_variable_to_shape_map()
        assert names == served.get_variable_to_shape_map() and "global_step" in names
        for name in names:
            np.testing.assert_array_equal(trained.get_tensor(name), served.get_tensor(name))
    assert records.find_current(tmp_path / "to")[0] == 2
    said = results[-1]["publication"]
    assert said["epochs"] >= 2 and said["waiting"] == said["failures"] == 0 and said["global_step"] == 60
    assert any("[RunStatus]: Publication statistics => epochs: " in line for line in caplog.messages)


def test_a_model_that_is_fed_by_a_dataset_has_no_publication(tmp_path):
    def input_fn():
        zeros = np.zeros((8, 1), np.float32)
        return tf.data.Dataset.from_tensor_slices(({"x": zeros}, zeros[:, 0])).batch(4)

    def model_fn(features, labels, mode, params):
        logits = features["x"][:, 0] * tf1.get_variable("w", [])
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = Estimator(model_fn, tmp_path / "model", None, RunConfig(publish=PublishConfig(to=str(tmp_path / "to"))))
    with pytest.raises(UserError, match=f"publish={tmp_path}/to: a model that is fed by a tf.data.Dataset"):
        estimator.train(input_fn)
    assert not (tmp_path / "to").exists()
