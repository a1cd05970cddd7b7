"""The session of a training is TensorFlow's MonitoredTrainingSession, with all that its users expect of it."""

import glob
import logging
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, own_loop, retention
from ctr_trainer.estimator import session as session_module
from ctr_trainer.estimator.session import PreparedRuns
from ctr_trainer.system.messages.errors import UserError
from tests import small

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


def test_it_is_tensorflows_own_and_is_told_the_model_directory(tmp_path, monkeypatch):
    told, made = [], tf1.train.MonitoredTrainingSession

    def session(**settings):
        told.append(settings)
        return made(**settings)

    monkeypatch.setattr(tf1.train, "MonitoredTrainingSession", session)
    _train(tmp_path, 3)
    (settings,) = told
    assert settings["checkpoint_dir"] == str(tmp_path)
    assert settings["log_step_count_steps"] is None  # `global_step/sec` is by the training's own clock.
    assert "StopAtStepHook" in [type(hook).__name__ for hook in settings["hooks"]]


def test_each_step_is_one_run_of_the_monitored_session(tmp_path, monkeypatch):
    runs, run = [], tf1.train.MonitoredSession.run

    def counted(self, fetches, *arguments, **more):
        runs.append(fetches)
        return run(self, fetches, *arguments, **more)

    monkeypatch.setattr(tf1.train.MonitoredSession, "run", counted)
    _train(tmp_path, 3)
    assert len(runs) == 3
    assert len(set(runs)) == 1


def test_its_step_rate_is_logged_and_the_models_own_summaries_are_written(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        _train(tmp_path, 7)
    lines = [record.getMessage() for record in caplog.records if record.module == "log_hooks"]
    assert sum(re.fullmatch(r"global_step/sec: [\d.e+]+", line) is not None for line in lines) == 3
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


def _own_runs(monkeypatch):
    """Returns a list that grows with each run that a session takes apart by itself."""
    runs, run = [], tf1.Session._run

    def counted(self, *arguments):
        runs.append(arguments)
        return run(self, *arguments)

    monkeypatch.setattr(tf1.Session, "_run", counted)
    return runs


def test_the_steps_of_a_training_are_prepared_runs_with_the_same_losses(tmp_path, monkeypatch):
    runs = _own_runs(monkeypatch)
    _train(tmp_path / "prepared", 2)
    few = len(runs)
    _train(tmp_path / "more", 20)
    assert len(runs) == 2 * few
    monkeypatch.setattr(session_module.PreparedRuns, "__call__", lambda self, *args, **more: self._run(*args, **more))
    _train(tmp_path / "plain", 20)
    assert len(runs) > 2 * few + 20
    variables = [tf.train.load_variable(tf.train.latest_checkpoint(tmp_path / of), "w") for of in ("more", "plain")]
    np.testing.assert_array_equal(*variables)


def test_equal_runs_are_prepared_and_have_the_results_of_the_session_itself(monkeypatch):
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [None, 2], "fed")
        total, count = tf.reduce_sum(fed), tf1.get_variable("count", [], tf.int64, tf1.zeros_initializer())
        counted, counts = count.assign_add(1), count.read_value()
        session.run(count.initializer)
        run, runs = PreparedRuns(session), _own_runs(monkeypatch)
        fetches = {"sum": total, "parts": [fed, (total, counted.op)], "op": counted.op, "none": []}
        for number in range(1, 6):
            values = np.full((number, 2), number)
            found = run(fetches, {fed: values})
            assert (found["sum"], found["op"], found["none"]) == (2 * number**2, None, [])
            np.testing.assert_array_equal(found["parts"][0], values)
            assert found["parts"][0].dtype == np.float32
            assert found["parts"][1] == (2 * number**2, None)
        # Another structure of the same tensors, then without a feed.
        assert [run([total], {fed: np.ones((1, 2))}) for _ in range(3)] == [[2.0]] * 3
        assert run(counts) == 5
        assert not runs
        with pytest.raises(tf.errors.InvalidArgumentError, match="fed"):
            run([total])


def test_a_wrong_shape_is_refused_and_an_error_names_its_operation():
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [2], "fed")
        checked = tf1.check_numerics(fed, "not a number", name="the_check")
        run = PreparedRuns(session)
        with pytest.raises(ValueError, match=r"shape \(3,\) for fed:0, which is \(2,\)"):
            run(checked, {fed: [1, 2, 3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number") as caught:
            run(checked, {fed: [1, np.nan]})
        assert caught.value.op is checked.op


def test_what_a_session_refuses_is_refused_and_nothing_to_run_is_no_error():
    with tf.Graph().as_default():
        other = tf.constant(5.0, name="same_name")
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        own, fed = tf.constant(1.0, name="same_name"), tf1.placeholder(tf.float32, [])
        hidden, fixed = tf.constant(1.0), tf.constant(1.0)
        graph.prevent_fetching(hidden.op)
        graph.prevent_feeding(fixed)
        run = PreparedRuns(session)
        assert run([own]) == [1.0]
        for fetches, feeds in (([other], None), (own, {other: 2.0}), (hidden, None), (own, {fixed: 2.0})):
            with pytest.raises((ValueError, TypeError)):
                run(fetches, feeds)
        assert run([]) == run([], {fed: 3.0}) == []
        assert run({"fed": fed}, {fed: 3.0}) == {"fed": 3.0}


def test_traces_and_other_fetches_and_feeds_are_runs_of_the_session_itself(monkeypatch):
    with tf.Graph().as_default(), tf1.Session() as session:
        sparse = tf1.sparse_placeholder(tf.float32, [3])
        total = tf1.sparse_reduce_sum(sparse)
        variable = tf1.get_variable("variable", [], initializer=tf1.ones_initializer())
        session.run(variable.initializer)
        run, runs = PreparedRuns(session), _own_runs(monkeypatch)
        for number in range(1, 4):
            fed = tf1.SparseTensorValue([[1]], [float(number)], [3])
            assert run([total], {sparse: fed}) == [number]
            assert run({"by_name": total.name}, {sparse: fed}) == {"by_name": number}
            assert run(variable) == 1
            assert len(runs) == 3 * number
        metadata = tf1.RunMetadata()
        run([variable.read_value()], None, tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), metadata)
        assert metadata.step_stats.dev_stats


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
    with pytest.raises(UserError, match=r"dense variables of step 0, and the rows of .*model are of step 4: open it"):
        _train_in_an_own_loop(data, tmp_path / "model", epochs=2, restores=False)
    _train_in_an_own_loop(data, tmp_path / "model", epochs=2)
    assert (tmp_path / "model" / "checkpoints" / "step-0000000008" / "manifest.json").exists()
