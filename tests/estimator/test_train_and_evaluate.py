"""Evaluations on the way: what they find, what they leave alone, and what comes of them."""

import collections
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint import retention
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    RunConfig,
)
from ctr_trainer.estimator.in_loop_evaluation import InLoopEvaluation
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.checkpoints import values
from tests.constant import CONSTANT
from tests.estimator import deepfm
from tests.parallel import launch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("train_and_evaluate")
    return small.make(directory / "train", rows=320), small.make(directory / "test", rows=200, seed=1)


def _estimator(model_dir, accumulation_steps=1, **config):
    train_op = TrainOp("adagrad", 0.1, 0.3, accumulation_steps=accumulation_steps, **CONSTANT)
    return deepfm.estimator(model_dir, train_op, **config)


def _train(data, model_dir, max_steps, eval_spec=None, epochs=None, batch_size=32, **config):
    estimator, input_fn = _estimator(model_dir, **config), deepfm.batches(data[0], batch_size, epochs=epochs)
    return estimator, estimator.train(input_fn, max_steps=max_steps, evaluation=eval_spec).last_training


def _eval_spec(data, **more):
    return EvalSpec(lambda: BatchReader(data[1], 32, shuffle=False, epochs=1), **more)


def test_an_evaluation_within_training_is_that_of_the_checkpoint_of_its_step(data, tmp_path):
    spec = _eval_spec(data, every_n_steps=10, group_by="user")
    estimator, result = _train(data, tmp_path, 25, spec, save_checkpoints_steps=10)
    found = {e["step"]: e for e in EvaluationHistory.load(tmp_path).evaluations}
    assert list(found) == [10, 20, 25]
    for step, metrics in found.items():
        later = estimator.evaluate(spec.input_fn, checkpoint_path=estimator.find_checkpoint(str(step)), group_by="user")
        later.pop("reliability")
        assert later.pop("new_keys")["user"]["share"] == 0
        assert later.pop("global_step") == metrics.pop("step")
        assert later == pytest.approx(metrics, abs=1e-6)
    assert result["evaluation"]["global_step"] == 25
    assert result["evaluation"]["examples"] == 200
    assert result["evaluation"]["gauc_groups"] > 10
    assert 0 < result["evaluation_seconds"]
    events = [e for e in os.listdir(tmp_path / "eval") if "tfevents" in e]
    aucs = [
        (event.step, round(value.simple_value, 5))
        for event in tf.compat.v1.train.summary_iterator(str(tmp_path / "eval" / events[0]))
        for value in event.summary.value
        if value.tag == "auc"
    ]
    assert aucs == [(step, round(metrics["auc"], 5)) for step, metrics in found.items()]


def test_evaluations_leave_training_as_it_is_to_the_bit_and_make_no_row(data, tmp_path):
    one, _ = _train(data, tmp_path / "with", 12, _eval_spec(data, every_n_steps=3))
    other, _ = _train(data, tmp_path / "without", 12)
    with_evaluations, without = values(one.latest_checkpoint()), values(other.latest_checkpoint())
    assert set(with_evaluations) == set(without)
    for name, value in without.items():
        np.testing.assert_array_equal(with_evaluations[name], value, name)


def test_evaluations_come_at_the_ends_of_epochs(data, tmp_path):
    """320 rows in batches of 32: 10 steps an epoch; of accumulated pairs 5, and 20 with batches of 16."""

    def steps(directory):
        return [each["step"] for each in EvaluationHistory.load(directory).evaluations]

    spec = _eval_spec(data, every_n_epochs=1)
    _train(data, tmp_path, 13, spec)
    _train(data, tmp_path, 45, spec)
    # 5 batches of 32 are left of the fifth epoch: 10 of 16.
    _train(data, tmp_path, 100, spec, epochs=6, batch_size=16)
    assert steps(tmp_path) == [10, 13, 20, 30, 40, 45, 55, 75]
    _train(data, tmp_path / "accumulated", None, spec, epochs=4, accumulation_steps=3)
    # Steps of three batches: 10, 20, 30 and 40 batches are over with these.
    assert steps(tmp_path / "accumulated") == [4, 7, 10, 14]


def test_the_long_work_of_rank_0_reports_its_progress(data, tmp_path, monkeypatch):
    said, from_chief = collections.defaultdict(list), distributed.from_chief

    def recording(work, name):
        return from_chief(lambda _: work(said[name].append), name)

    def commit_slowly(checkpoint, commit=checkpoints.commit):
        launch.wait_until(lambda: said["files_of_the_last_checkpoint"], "the steps to wait for it")
        return commit(checkpoint)

    monkeypatch.setattr(distributed, "from_chief", recording)
    monkeypatch.setattr(checkpoints, "commit", commit_slowly)
    exporters = [LatestExporter("latest"), FinalExporter("final")]
    spec = _eval_spec(data, every_n_steps=0, best_metric="auc", exporters=exporters)
    estimator, _ = _train(data, tmp_path, 4, spec)
    assert said["files_of_the_last_checkpoint"]
    assert not said["checkpoint"]  # There was none to read.
    checkpoint = estimator.latest_checkpoint()
    for entry in (*checkpoint.tables, *checkpoint.dense):
        assert f"reading {checkpoint}/{entry['file']}" in said["checkpoint"]
        assert f"copying {checkpoint}/{entry['file']}" in said["best_checkpoint"]
    exports = [text.partition(" the keys")[0] for text in said["exports"]]
    assert exports.count("exported latest") == exports.count("exported final") == 2
    assert exports.count("reading") >= 2  # The keys of both exports.
    assert f"reading {checkpoint}/{checkpoint.tables[0]['file']}" in exports
    assert "writing dim4" in exports


def _constant_model_fn(features, labels, mode, params):
    loss = tf.reduce_mean(features * tf.compat.v1.get_variable("w", [], initializer=tf.ones_initializer()))
    return EstimatorSpec(mode, loss=loss, optimizer=tf.compat.v1.train.GradientDescentOptimizer(0.0))


def test_an_evaluation_that_ends_a_training_does_so_after_a_restart_too(tmp_path, monkeypatch):
    def endless():
        return tf.data.Dataset.from_tensors(np.ones(4, np.float32)).repeat()

    estimator = Estimator(_constant_model_fn, tmp_path, config=RunConfig(threads=1, save_checkpoints_steps=2))
    stopping = dict(every_n_steps=2, best_metric="loss", early_stopping_patience=1)
    spec, evaluate, calls = EvalSpec(lambda: endless().take(1), **stopping), InLoopEvaluation.evaluate, []

    def end(*given):
        calls.append(given)
        if len(calls) == 2:
            raise UserError("killed")
        return evaluate(*given)

    monkeypatch.setattr(InLoopEvaluation, "evaluate", end)
    with pytest.raises(UserError, match="killed"):
        estimator.train(endless, evaluation=spec)
    result = estimator.train(endless, evaluation=spec).last_training
    assert (result["steps"], result["global_step"], result["stopped_early"]) == (0, 4, True)
    assert estimator.train(endless, evaluation=spec).last_training is None  # There is nothing more to do.


@pytest.mark.parametrize("length", [dict(max_steps=10), dict(max_steps=None, epochs=1)])
@pytest.mark.parametrize(("owner", "name"), [(InLoopEvaluation, "evaluate"), (retention, "keep_best")])
def test_a_restart_makes_up_the_last_evaluation_and_what_follows(data, tmp_path, monkeypatch, owner, name, length):
    def end(*given, **more):
        raise UserError("killed")

    spec = _eval_spec(data, every_n_steps=0, best_metric="auc", exporters=[FinalExporter("final")])
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, end)
        with pytest.raises(UserError, match="killed"):
            _train(data, tmp_path, eval_spec=spec, **length)
    estimator, result = _train(data, tmp_path, eval_spec=spec, **length)
    assert (result.steps, result.global_step, result.evaluation["global_step"]) == (0, 10, 10)
    history = EvaluationHistory.load(tmp_path)
    assert ([each["step"] for each in history.evaluations], history.best["step"]) == ([10], 10)
    estimator.find_checkpoint("best").verify()
    assert len(os.listdir(tmp_path / "export" / "final")) == 1
    assert _train(data, tmp_path, eval_spec=spec, **length)[1] is None  # There is nothing more to do.


def test_a_restart_makes_up_an_evaluation_that_was_due_by_the_clock(data, tmp_path, monkeypatch):
    def end(*given, **more):
        raise UserError("killed")

    spec = _eval_spec(data, throttle_secs=0, best_metric="auc")
    with monkeypatch.context() as patched:
        patched.setattr(retention, "keep_best", end)
        with pytest.raises(UserError, match="killed"):
            _train(data, tmp_path, 10, spec, save_checkpoints_steps=5)
    _train(data, tmp_path, 10, spec, save_checkpoints_steps=5)
    history = EvaluationHistory.load(tmp_path)
    assert [each["step"] for each in history.evaluations] == [5, 10] and history.best["step"] in (5, 10)
    assert not history.due
    spec = _eval_spec(data, throttle_secs=3600, start_delay_secs=3600, best_metric="auc")
    _train(data, tmp_path, 15, spec, save_checkpoints_steps=5)
    history.go_back(10)
    history.save(tmp_path)
    _train(data, tmp_path, 20, spec, save_checkpoints_steps=5)  # Step 15 was not due, although none is recorded.
    assert [each["step"] for each in EvaluationHistory.load(tmp_path).evaluations] == [5, 10, 20]


def test_the_best_checkpoint_outlives_the_others_and_is_found_by_its_name(data, tmp_path):
    spec = _eval_spec(data, every_n_steps=4, best_metric="auc")
    _train(data, tmp_path / "model", 40, spec, keep_checkpoint_max=1, full_checkpoint_every=5)
    os.rename(tmp_path / "model", tmp_path / "moved")  # A model directory may be moved.
    tmp_path, estimator = tmp_path / "moved", _estimator(tmp_path / "moved")
    history = EvaluationHistory.load(tmp_path)
    best = max(history.evaluations, key=lambda e: e["auc"])
    assert history.best == {"metric": "auc", "direction": "max", "step": best["step"], "value": best["auc"]}
    assert os.listdir(tmp_path / "best") == [f"step-{best['step']:010d}"]
    checkpoint = estimator.find_checkpoint("best")
    checkpoint.verify()
    metrics = estimator.evaluate(spec.input_fn, checkpoint_path=checkpoint)
    assert metrics["auc"] == pytest.approx(best["auc"], abs=1e-6)
    # The last one, and the newest of the chain before.
    assert [c.step for c in checkpoints.list_checkpoints(tmp_path)][1:] == [40]
    estimator.find_checkpoint(str(best["step"]))
    with pytest.raises(UserError, match="there is no checkpoint of step 3 in"):
        estimator.find_checkpoint("3")
    with pytest.raises(UserError, match="expected auto, latest, best or a step"):
        estimator.find_checkpoint("newest")


@pytest.mark.parametrize("best_metric", ["", "logloss"])
def test_an_evaluation_is_one_line_of_the_log_with_the_best_so_far(data, tmp_path, caplog, best_metric):
    with caplog.at_level("INFO"):
        _train(data, tmp_path, 20, _eval_spec(data, every_n_steps=5, best_metric=best_metric))
    lines = [line for line in caplog.messages if line.startswith(("evaluation", "the best"))]
    evaluations = EvaluationHistory.load(tmp_path).evaluations
    assert len(lines) == len(evaluations) == 4
    name, is_better, form = ("logloss", min, ".8f") if best_metric else ("auc", max, ".6g")
    for number, (line, each) in enumerate(zip(lines, evaluations, strict=True)):
        best = is_better(evaluations[: number + 1], key=lambda e: e[name])
        said = f"best so far {best[name]:{form}} at step {best['step']}"
        if best is each:
            said = f"the best so far, kept in {tmp_path / 'best'}" if best_metric else "the best so far"
        assert line.startswith(f"evaluation at step {each['step']}: {name} = {each[name]:{form}} ({said}), ")
        assert line.count(" = ") == len(each) - 1


def test_training_stops_when_nothing_better_comes_and_stays_stopped(data, tmp_path):
    # No improvement is as large as 1, so the first evaluation is the best and the third one in a row ends it.
    patience = dict(best_metric="logloss", early_stopping_patience=2, early_stopping_min_delta=1.0)
    spec = _eval_spec(data, every_n_steps=5, **patience)
    _train(data, tmp_path, 8, spec)
    # The evaluation of step 8 was a run's last: it is kept, as the step is, and counts after the restart.
    assert [e["step"] for e in EvaluationHistory.load(tmp_path).evaluations] == [5, 8]
    estimator, result = _train(data, tmp_path, 100, spec)
    assert (result["global_step"], result["stopped_early"]) == (10, True)
    assert estimator.latest_checkpoint().step == 10
    assert _train(data, tmp_path, 100, spec)[1] is None
    more = _eval_spec(data, every_n_steps=5, **{**patience, "early_stopping_patience": 4})
    assert _train(data, tmp_path, 100, more)[1]["global_step"] == 20


def test_metrics_of_several_labels_are_apart_and_either_chooses_the_best_model(tmp_path):
    def model_fn(features, labels, mode, params):
        bias = tf.compat.v1.get_variable("bias", [], initializer=tf.compat.v1.zeros_initializer())
        shared = tf.reduce_sum(features["linear"], [1, 2]) + bias
        logits = {name: shared * (1.0 if name == "clicked" else -1.0) for name in ("clicked", "bought")}
        predictions = {f"logits/{name}": tensor for name, tensor in logits.items()}
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels["clicked"], logits=logits["clicked"])
        loss = tf.reduce_mean(losses * features["weight"])
        train_op = TrainOp("sgd", 0.1, 0.3)(loss, features) if mode == "train" else None
        return EstimatorSpec(mode, predictions, loss, train_op)

    data = small.make(tmp_path, rows=200, labels=2)
    estimator = Estimator(model_fn, tmp_path / "model", config=RunConfig(threads=1))
    spec = EvalSpec(
        lambda: BatchReader(data, 32, shuffle=False, epochs=1), every_n_steps=3, best_metric="auc/bought", name="test"
    )
    estimator.train(lambda: BatchReader(data, 32), max_steps=6, evaluation=spec)
    history = EvaluationHistory.load(tmp_path / "model")
    last = history.evaluations[-1]
    assert last["auc/clicked"] > 0.8  # trained on
    assert last["auc/bought"] < 0.5  # its logits are the negative ones
    assert history.best["value"] == max(each["auc/bought"] for each in history.evaluations)
    assert (tmp_path / "model" / "eval_test").is_dir()
    assert {"reliability/clicked", "reliability/bought"} < set(estimator.evaluate(spec.input_fn))


def test_periods_of_checkpoints_exclude_each_other_and_are_steps_by_default():
    with pytest.raises(UserError, match="steps=5 and save_checkpoints_secs=60"):
        RunConfig(save_checkpoints_steps=5, save_checkpoints_secs=60)
    for settings, steps in (({}, 1000), (dict(save_checkpoints_steps=0), 0), (dict(save_checkpoints_secs=60), 0)):
        assert RunConfig(**settings).checkpoint_steps == steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(early_stopping_patience=2), "needs a best_metric"),
        (dict(best_metric="recall"), "best_metric=recall are better is not known"),
        (
            dict(every_n_steps=0, best_metric="auc", early_stopping_patience=2),
            "early_stopping_patience=2 counts evaluations while training: give every_n_steps or every_n_epochs",
        ),
        (dict(every_n_steps=5, every_n_epochs=2), "every_n_steps=5 and every_n_epochs=2 exclude each other"),
        (dict(best_metric="gauc"), "best_metric=gauc: the model has no such metric; it has loss, auc, "),
        (dict(group_by="age"), "no column 'age' to group by.*row, user, item, place"),
        (dict(group_by="itme"), "no column 'itme' .*; did you mean item\\?"),
    ],
)
def test_a_mistake_is_named_before_training(data, tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        _train(data, tmp_path, 4, _eval_spec(data, **settings))
    assert not (tmp_path / "checkpoints").exists()


def test_the_history_has_no_nan_in_its_file(tmp_path):
    history = EvaluationHistory()
    history.add(5, {"auc": float("nan"), "examples": 3})
    history.save(tmp_path)
    assert "NaN" not in (tmp_path / "evaluations.json").read_text()
    assert json.loads((tmp_path / "evaluations.json").read_text())["evaluations"][0]["auc"] is None
    assert np.isnan(EvaluationHistory.load(tmp_path).evaluations[0]["auc"])


def test_patience_counts_from_the_last_improvement_by_more_than_min_delta():
    history = EvaluationHistory(
        [{"step": i, "auc": auc} for i, auc in enumerate([0.6, 0.7, 0.705, float("nan"), 0.69], 1)]
    )
    assert history.waits("auc", "max") == [0, 0, 0, 1, 2]
    assert history.waits("auc", "max", 0.01) == [0, 0, 1, 2, 3]
    assert history.waits("auc", "min") == [0, 1, 2, 3, 4]
    assert history.waits("loss", "min") == [1, 2, 3, 4, 5]
