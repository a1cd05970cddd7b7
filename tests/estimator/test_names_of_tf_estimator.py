"""The names of tf.estimator, with their meaning."""

import functools
import os

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer import estimator as tf_estimator
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.estimator import evaluated_training
from ctr_trainer.estimator.run_length import EverySeconds, RunLength
from ctr_trainer.export import directory
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)


def input_fn():
    labels = (X[:, 0] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": X, "user": np.arange(64) % 8}, labels)).batch(8)


class Seen(tf1.train.SessionRunHook):
    def __init__(self):
        self.runs = 0

    def before_run(self, run_context):
        self.runs += 1


def model_fn(features, labels, mode, params, config):
    labels = labels["y"] if isinstance(labels, dict) else labels
    w = tf1.get_variable("w", [3], initializer=tf1.constant_initializer(params.get("start", 0.0)))
    logits = tf.reduce_sum(features["x"] * w, 1)
    predictions = {"score": tf.sigmoid(logits), "other": -logits, "logits": logits}
    outputs = {
        "serving_default": tf_estimator.export.PredictOutput({"chance": predictions["score"]}),
        "negative": tf_estimator.export.PredictOutput(predictions["other"]),
    }
    spec = dict(predictions=predictions, export_outputs=outputs, prediction_hooks=params.get("prediction_hooks"))
    if mode == tf_estimator.ModeKeys.PREDICT:
        return tf_estimator.EstimatorSpec(mode, **spec)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    loss += 0.0 * config.seed
    step = tf1.train.get_global_step()
    train_op = tf1.train.GradientDescentOptimizer(params.get("rate", 0.1)).minimize(loss, step)
    scaffold = None
    if "init" in params:
        value = tf1.constant(params["init"], tf.float32, [3])
        assign = w.assign(value)
        scaffold = tf1.train.Scaffold(init_fn=lambda scaffold, session: session.run(assign))
    spec.update(loss=loss, train_op=train_op, scaffold=scaffold, training_chief_hooks=params.get("chief_hooks"))
    if mode == tf_estimator.ModeKeys.EVAL:
        spec["eval_metric_ops"] = {"accuracy": tf1.metrics.accuracy(labels, tf.cast(logits > 0, tf.float32))}
    return tf_estimator.EstimatorSpec(mode, **spec)


def make(path, params=None, **config):
    made = tf_estimator.RunConfig(model_dir=str(path), threads=1, seed=7).replace(**config)
    return tf_estimator.Estimator(model_fn, config=made, params=params or {})


def served_by(path, inputs, signature="serving_default"):
    """Returns what a SavedModel answers."""
    with tf.Graph().as_default(), tf1.Session() as session:
        found = tf1.saved_model.load(session, [tf.saved_model.SERVING], path).signature_def[signature]
        feed = {found.inputs[name].name: value for name, value in inputs.items()}
        return session.run({name: tensor.name for name, tensor in found.outputs.items()}, feed)


def test_a_program_trains_evaluates_resumes_predicts_and_exports(tmp_path):
    def own_input_fn(mode, params):
        assert params == {"rate": 1.0}
        return input_fn().repeat() if mode == tf_estimator.ModeKeys.TRAIN else input_fn()

    estimator = make(tmp_path / "model", {"rate": 1.0})
    estimator.train(own_input_fn, steps=50)
    first = estimator.evaluate(own_input_fn)
    assert first["global_step"] == 50
    assert first["accuracy"] > 0.9
    estimator.train(own_input_fn, max_steps=80)
    second = estimator.evaluate(own_input_fn)
    assert second["global_step"] == 80
    assert second["loss"] < first["loss"]
    predictions = [each["score"] for each in estimator.predict(own_input_fn)]
    assert len(predictions) == 64
    receive = tf_estimator.export.build_raw_serving_input_receiver_fn({"x": tf1.placeholder(tf.float32, [None, 3])})
    path = estimator.export_saved_model(str(tmp_path / "export"), receive)
    np.testing.assert_allclose(served_by(path, {"x": X[:32]})["chance"], predictions[:32], atol=1e-6)


def test_a_spec_without_what_its_mode_needs_is_refused():
    with pytest.raises(ValueError, match="needs loss and train_op"):
        tf_estimator.EstimatorSpec(tf_estimator.ModeKeys.TRAIN)


def test_the_options_of_a_session_are_the_programs_but_for_threads_and_the_gpu():
    given = tf1.ConfigProto(intra_op_parallelism_threads=3, inter_op_parallelism_threads=5, log_device_placement=True)
    distributed.watchdog()
    own = distributed.session_config(threads=0, given=given)
    assert (own.intra_op_parallelism_threads, own.inter_op_parallelism_threads) == (3, 5)
    assert own.log_device_placement and own.experimental.disable_thread_spinning
    assert distributed.session_config(threads=2, given=given).intra_op_parallelism_threads == 2


def test_a_model_directory_is_named_once(tmp_path):
    with pytest.raises(UserError, match="needs a model_dir"):
        tf_estimator.Estimator(model_fn)
    with pytest.raises(UserError, match="give one of them"):
        tf_estimator.Estimator(model_fn, "a", config=tf_estimator.RunConfig(model_dir="b"))
    config = tf_estimator.RunConfig(threads=1)
    made = tf_estimator.Estimator(model_fn, str(tmp_path), config, {"rate": 0.1})  # In the order of tf.estimator.
    assert made.params == {"rate": 0.1} and made.config.model_dir == str(tmp_path)


def test_a_program_predicts_by_keys_exports_its_outputs_and_reads_its_variables(tmp_path):
    hook, chief = Seen(), Seen()
    estimator = make(tmp_path / "m", {"prediction_hooks": [hook], "chief_hooks": [chief]})
    estimator.train(input_fn, hooks=None, steps=8)
    assert chief.runs == 8
    weights = estimator.get_variable_value("w")
    assert "w" in estimator.get_variable_names()
    (first, *rest) = estimator.predict(input_fn, predict_keys="other")
    assert list(first) == ["other"] and len(rest) == 63 and hook.runs >= 8
    np.testing.assert_allclose(first["other"], -X[0] @ weights, atol=1e-6)
    with pytest.raises(UserError, match="predict_keys=chance: the model predicts score, other, logits"):
        next(estimator.predict(input_fn, predict_keys=["chance"]))
    receive = tf_estimator.export.build_parsing_serving_input_receiver_fn({"x": tf.io.FixedLenFeature([3], tf.float32)})
    (tmp_path / "note.txt").write_text("kept")
    path = estimator.export_savedmodel(
        str(tmp_path / "e"), receive, assets_extra={"more/note.txt": tmp_path / "note.txt"}
    )
    assert (tmp_path / "e" / path.split("/")[-1] / "assets.extra" / "more" / "note.txt").read_text() == "kept"
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=X[0]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
    negative = served_by(path, {"examples": [example]}, "negative")["output"]
    np.testing.assert_allclose(negative, [-X[0] @ weights], atol=1e-6)
    assert list(served_by(path, {"examples": [example]})) == ["chance"]


def test_a_checkpoint_is_named_by_its_path(tmp_path):
    estimator = make(tmp_path / "m", save_checkpoints_steps=4)
    estimator.train(input_fn, steps=8)
    first = str(tmp_path / "m" / "checkpoints" / "step-0000000004")
    for path in (first, f"{first}/dense"):
        assert estimator.evaluate(input_fn, checkpoint_path=path)["global_step"] == 4
    with pytest.raises(UserError, match="checkpoint_path=.*there is no checkpoint of this package"):
        estimator.evaluate(input_fn, checkpoint_path=str(tmp_path / "none"))


def test_variables_of_another_model_are_refused_by_name_and_shape(tmp_path):
    make(tmp_path / "m").train(input_fn, steps=1)

    def other(name, size):
        def model_fn(features, labels, mode):
            w = tf1.get_variable(name, [size])
            return tf_estimator.EstimatorSpec(mode, predictions={"y": features["user"] * 0 + tf.cast(w[0], tf.int64)})

        config = tf_estimator.RunConfig(model_dir=str(tmp_path / "m"), threads=1)
        return tf_estimator.Estimator(model_fn, config=config)

    for name, size, found in (("w", 4, r"w \[4\] \(there \[3\]\)"), ("v", 3, r"v \[3\] \(not there\)")):
        with pytest.raises(UserError, match=f"is of another model: this one has the variables {found}. Give"):
            next(other(name, size).predict(input_fn))


@pytest.mark.parametrize("how", ["a path", "settings"])
def test_a_training_begins_with_the_variables_of_a_checkpoint_of_tensorflow(tmp_path, how):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("w", initializer=[1.0, 2.0, 3.0])
        session.run(tf1.global_variables_initializer())
        source = tf1.train.Saver().save(session, str(tmp_path / "old" / "model.ckpt"), global_step=9)
    source = source if how == "a path" else tf_estimator.WarmStartSettings(str(tmp_path / "old"), ".*w")
    config = tf_estimator.RunConfig(threads=1)
    params = {"rate": 0.0}
    estimator = tf_estimator.Estimator(model_fn, str(tmp_path / "m"), params, config, warm_start_from=source)
    estimator.train(input_fn, steps=1)
    assert estimator.get_variable_value("w").tolist() == [1.0, 2.0, 3.0]
    # A scaffold of the program initializes variables too.
    assert (
        make(tmp_path / "s", {"init": 2.0, **params}).train(input_fn, steps=1).get_variable_value("w").tolist()
        == [2.0] * 3
    )


def test_each_evaluation_covers_all_data_and_exporters_get_their_models(tmp_path):
    estimator = make(tmp_path / "m", {"rate": 0.5}, save_checkpoints_steps=2)
    receive = tf_estimator.export.build_raw_serving_input_receiver_fn({"x": tf1.placeholder(tf.float32, [None, 3])})
    worse = tf_estimator.BestExporter("worst", receive, compare_fn=lambda best, now: now["loss"] > best["loss"])
    exporters = [
        tf_estimator.BestExporter(serving_input_receiver_fn=receive, exports_to_keep=None),
        tf_estimator.LatestExporter("latest", receive, exports_to_keep=1),
        tf_estimator.FinalExporter("final", receive),
        worse,
    ]
    at_once = dict(start_delay_secs=0, throttle_secs=0, group_by="user")
    spec = tf_estimator.EvalSpec(
        input_fn, steps=None, exporters=exporters, best_metric="accuracy", best_direction="max", **at_once
    )
    metrics, _ = tf_estimator.train_and_evaluate(estimator, tf_estimator.TrainSpec(input_fn, max_steps=8), spec)
    assert metrics["global_step"] == 8
    assert metrics["accuracy"] > 0.9 and metrics["gauc"] == pytest.approx(1.0, abs=0.1)
    assert [each["examples"] for each in EvaluationHistory.load(tmp_path / "m").evaluations] == [64] * 4
    names = ("best_exporter", "latest", "final", "worst")
    found = {name: len(list((tmp_path / "m" / "export" / name).iterdir())) for name in names}
    assert found == {"best_exporter": 4, "latest": 1, "final": 1, "worst": 1}  # The loss falls.


def test_an_export_has_the_greatest_version_whatever_the_clock_says(tmp_path, monkeypatch):
    (tmp_path / "0005000000").mkdir()  # Of another program, which counts on from it.
    (tmp_path / ".5000001.unfinished").mkdir()
    versions = []
    for clock in (4e6, 3e6, 3e6, 9e6, 8e6):  # It is behind, set back, stands still, jumps, and is set back again.
        monkeypatch.setattr(directory.time, "time", lambda clock=clock: clock)
        versions.append(directory.next_version(tmp_path))
        os.mkdir(versions[-1])
    numbers = (5000002, 5000003, 5000004, 9000000, 9000001)
    assert versions == [str(tmp_path / str(number)) for number in numbers]


def test_evaluations_come_with_checkpoints_but_not_before_their_time(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(evaluated_training, "EverySeconds", functools.partial(EverySeconds, clock=lambda: now[0]))
    monkeypatch.setattr(distributed, "all_sum", lambda values, name: told.append(name) or values)
    spec = tf_estimator.EvalSpec(input_fn, start_delay_secs=30.0, throttle_secs=60.0)
    period = evaluated_training.EvaluationPeriod(spec, RunLength())
    period.begin()
    due = []
    for step in range(1, 101):
        now[0] = 2.5 * step
        if period.is_due(step, saves=step % 10 == 0):
            due.append(step)
    assert due == [20, 50, 80]  # From second 30 on, then 60 s apart.
    assert len(told) == 10


def test_hooks_have_the_names_of_tf_estimator():
    assert tf_estimator.LoggingTensorHook is tf1.train.LoggingTensorHook
    assert tf_estimator.SessionRunHook is tf1.train.SessionRunHook
    with pytest.raises(AttributeError, match="has no attribute 'DNNClassifier': docs/porting.md says"):
        tf_estimator.DNNClassifier  # noqa: B018


def test_arrays_and_data_frames_are_inputs(tmp_path):
    labels = (X[:, 0] > 0).astype(np.float32)
    read = tf_estimator.inputs.numpy_input_fn({"x": X}, labels, batch_size=16, shuffle=True)
    estimator = make(tmp_path / "m")
    assert estimator.train(read).last_training["steps"] == 4
    once = tf_estimator.inputs.numpy_input_fn({"x": X}, batch_size=16, shuffle=False)
    assert len(list(estimator.predict(once))) == 64
    named = tf_estimator.inputs.numpy_input_fn({"x": X}, {"y": labels}, batch_size=16, shuffle=False)
    assert estimator.evaluate(named)["auc"] > 0.5
