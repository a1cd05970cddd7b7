"""The session of a training is TensorFlow's MonitoredTrainingSession, with all that its users expect of it."""

import contextlib
import glob
import logging
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as determinism

from ctr_trainer.checkpoint import retention
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.service import Service
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, own_loop
from ctr_trainer.ranks.notices import ATTEMPT
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.estimator import deepfm

tf1 = tf.compat.v1


def _model_fn(features, labels, mode, params):
    w = tf1.get_variable("w", [2], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(features["x"], w) - labels))
    tf1.summary.scalar("a_summary_of_the_model", loss)
    given = {"optimizer": tf1.train.GradientDescentOptimizer(0.1)} if mode == ModeKeys.TRAIN else {}
    return EstimatorSpec(mode, loss=loss, **given)


def _input_fn():
    return tf.data.Dataset.from_tensors(({"x": np.ones([4, 2], np.float32)}, np.ones(4, np.float32))).repeat()


def _train(model_dir, steps):
    config = RunConfig(threads=1, log_steps=2, summary_steps=2)
    Estimator(_model_fn, model_dir, config=config).train(_input_fn, steps=steps)


def test_an_error_is_recorded_in_the_directory_of_its_own_training_only(tmp_path):
    """In a program without `run`, such as a notebook."""
    data = small.make(tmp_path, rows=64)

    class Fails(tf1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise KeyError(name)

    def recorded(model):
        return (tmp_path / model / "error-rank0.json").read_text()

    for name in ("first", "second"):
        with pytest.raises(KeyError):
            deepfm.estimator(tmp_path / name).train(deepfm.batches(data), [Fails()])
        assert f"KeyError: '{name}'" in recorded(name)
    deepfm.estimator(tmp_path / "second").train(deepfm.batches(data), max_steps=1)
    name = "third"
    with pytest.raises(KeyError):
        next(deepfm.estimator(tmp_path / "second").predict(lambda: BatchReader(data, 16), hooks=[Fails()]))
    assert name not in recorded("second")


def test_between_two_predictions_a_program_is_outside_of_their_graph(tmp_path):
    data, graphs = small.make(tmp_path, rows=64), []

    class Graphs(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            graphs.append(tf1.get_default_graph())

        def end(self, session):
            graphs.append(tf1.get_default_graph())

    estimator = deepfm.estimator(tmp_path / "model", deterministic=True)
    estimator.train(deepfm.batches(data), max_steps=1)
    outside = tf1.get_default_graph()
    batches = deepfm.batches(data, 16, epochs=1, shuffle=False)
    expected = [each["logits"] for each in estimator.predict(lambda: batches(None), yield_single_examples=False)]
    predicted = estimator.predict(lambda: batches(None), hooks=[Graphs()], yield_single_examples=False)
    found = [next(predicted)["logits"]]
    assert tf1.get_default_graph() is outside and not determinism.is_op_determinism_enabled()

    class IsDeterministic(tf1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            assert determinism.is_op_determinism_enabled()
            found.append(next(predicted)["logits"])

    estimator.train(deepfm.batches(data), [IsDeterministic()], max_steps=3)
    found += [each["logits"] for each in predicted]
    np.testing.assert_array_equal(found, expected)
    assert len(graphs) == 5 and len(set(graphs)) == 1 and outside not in graphs


def test_it_is_tensorflows_own_and_logs_rates_and_writes_summaries(tmp_path, monkeypatch, caplog):
    told, made = [], tf1.train.MonitoredTrainingSession

    def session(**settings):
        told.append(settings)
        return made(**settings)

    monkeypatch.setattr(tf1.train, "MonitoredTrainingSession", session)
    with caplog.at_level(logging.INFO):
        _train(tmp_path, 7)
    (settings,) = told
    assert settings["checkpoint_dir"] == str(tmp_path)
    assert settings["log_step_count_steps"] is None  # `global_step/sec` is by the training's own clock.
    rates = [line for line in caplog.messages if re.fullmatch(r"global_step/sec: [\d.e+]+", line)]
    assert len(rates) == 4  # After the steps 2, 4, 6 and 7.
    tags = {
        value.tag
        for path in glob.glob(f"{tmp_path}/events.out.tfevents.*")
        for event in tf1.train.summary_iterator(path)
        for value in event.summary.value
    }
    assert {"a_summary_of_the_model", "global_step/sec", "loss"} <= tags


def test_tensorflow_finds_the_newest_dense_variables_and_resumes(tmp_path):
    _train(tmp_path, 3)
    first = tf.train.latest_checkpoint(tmp_path)
    assert first == str(tmp_path / "checkpoints" / "step-0000000003" / "dense")
    _train(tmp_path, 3)
    assert tf.train.load_variable(tf.train.latest_checkpoint(tmp_path), "global_step") == 6
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(moved)
    assert tf.train.load_variable(tf.train.latest_checkpoint(moved), "global_step") == 6
    once = tmp_path.with_name(tmp_path.name + "-once")
    _train(once, 6)
    np.testing.assert_array_equal(
        *(tf.train.load_variable(tf.train.latest_checkpoint(directory), "w") for directory in (moved, once))
    )


@pytest.mark.parametrize("text", ['model_checkpoint_path: "model.ckpt-7"\n', "no state\n"])
def test_a_checkpoint_file_of_another_program_is_refused_and_left(tmp_path, text):
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(UserError, match="another program trains in this directory: name another model_dir"):
        _train(tmp_path, 1)
    assert (tmp_path / "checkpoint").read_text() == text


def test_a_run_goes_on_from_the_best_checkpoint_and_saves_again(tmp_path):
    _train(tmp_path, 3)
    retention.keep_best(str(tmp_path), str(tmp_path / "checkpoints" / "step-0000000003"))
    shutil.rmtree(tmp_path / "checkpoints" / "step-0000000003")
    estimator = Estimator(_model_fn, tmp_path, config=RunConfig(threads=1, save_checkpoints_steps=2))
    estimator.train(_input_fn, max_steps=7, resume_from=3)
    assert tf.train.load_variable(tf.train.latest_checkpoint(tmp_path), "global_step") == 7


def _model_of_rows_fn(features, labels, mode, params):
    logits = tf.reduce_sum(features["embedding"], [1, 2]) + tf1.get_variable("bias", [])
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
    return EstimatorSpec(mode, {"logits": logits}, loss, train_op)


def _train_in_an_own_loop(data, model_dir, epochs, restores=True):
    def input_fn(position):
        return BatchReader(data, 16, epochs=epochs, position=position)

    with own_loop(_model_of_rows_fn, input_fn, str(model_dir), RunConfig(threads=1)) as loop:
        directory = loop.checkpoint_dir if restores else None
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=directory, hooks=loop.hooks, save_checkpoint_secs=None
        ) as session:
            while not session.should_stop():
                session.run(loop.train_op)


def test_a_session_without_the_dense_variables_of_the_rows_is_refused(tmp_path):
    data = small.make(tmp_path, rows=64)
    _train_in_an_own_loop(data, tmp_path / "model", epochs=1)
    with pytest.raises(UserError, match=r"dense variables of step 0, and the rows of .*model are of step 4: the"):
        _train_in_an_own_loop(data, tmp_path / "model", epochs=2, restores=False)
    _train_in_an_own_loop(data, tmp_path / "model", epochs=2)
    assert (tmp_path / "model" / "checkpoints" / "step-0000000008" / "manifest.json").exists()


@pytest.mark.integration
@pytest.mark.parametrize("job", ["ours", "other"])
def test_rows_of_an_earlier_attempt_of_this_job_alone_are_dropped(data, tmp_path, monkeypatch, job):
    monkeypatch.setenv(ATTEMPT, "ours.2")
    with Service("127.0.0.1", 0, tmp_path) as service:
        address, keys = f"127.0.0.1:{service.port}", np.arange(1, 4)
        with contextlib.closing(ServiceClient([address], 60, lease=Owner.new("model", job))) as before:
            before.create_table(TableConfig("left", (2,), (0.1,), "sgd"))
            before.sync("left", keys, np.ones((3, 2), np.float32), "w", 1)
            before.release()
        estimator = deepfm.estimator(tmp_path / "model", embedding=EmbeddingConfig(service=address))
        refused = pytest.raises(UserError, match=r"holds rows \(\{'left': 3\}\) and .*model has no checkpoint")
        for _ in range(2):  # What a job finds at its start does not become its own by the start.
            with contextlib.nullcontext() if job == "ours" else refused:
                estimator.train(deepfm.batches(data), max_steps=2)
        assert service._store.stats()["tables"]["left"]["rows"] == (0 if job == "ours" else 3)
