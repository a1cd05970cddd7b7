"""A model directory knows its model: that is every command's default, and another one is refused by name."""

import dataclasses
import json
import pathlib
import shutil
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint import retention
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.checkpoint.model_record import ModelRecord
from ctr_trainer.commands.experiment.as_trained import as_trained
from ctr_trainer.commands.experiment.experiment import Experiment, ModelSettings
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.in_loop_evaluation import InLoopEvaluation
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm, param_texts
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.optimizers import RowFtrl
from ctr_trainer.system.messages.errors import UserError
from tests.models import every

# None of them is a default.
DIN = (
    "--model=din",
    "--model_params=target=item,wide=linear,attention_softmax=true,attention_units=6:4",
    "--hidden_units=8,6",
    "--activation=tanh",
    "--batch_norm",
    "--dropout=0.25",
    "--optimizer=adam",
    "--embedding_optimizer=sgd",
    "--embedding_stddev=0.2",
    "--embedding_dim=2",
    "--seed=7",
)


@pytest.fixture(scope="module")
def din(data, tmp_path_factory):
    """The flags that name a trained DIN and data to train it on, and nothing else of it."""
    model = tmp_path_factory.mktemp("din") / "model"
    flags = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={model}", "--batch_size=32", "--threads=1"]
    assert cli.main(["train", *flags, *DIN, "--max_steps=5"]) == 0
    return flags


def _last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_every_command_takes_the_model_from_its_directory(din, tmp_path, capsys):
    capsys.readouterr()
    assert cli.main(["evaluate", *din, *DIN]) == 0
    expected = _last_json(capsys)
    assert cli.main(["evaluate", *din]) == 0
    assert _last_json(capsys) == expected
    predicted = []
    for number, more in enumerate([DIN, ()]):
        assert cli.main(["predict", *din, *more, f"--output={tmp_path / str(number)}.parquet"]) == 0
        predicted.append(pq.read_table(tmp_path / f"{number}.parquet")["logits"].to_numpy())
    np.testing.assert_array_equal(*predicted)
    assert predicted[0].std() > 0
    assert cli.main(["export", *din, f"--export_dir={tmp_path / 'export'}"]) == 0
    served = tf.saved_model.load(str(tmp_path / "export"))
    assert any("dice" in v.name or "attention" in v.name for v in served.variables)


def test_a_training_goes_on_as_the_model_that_it_began_as(data, tmp_path):
    model = tmp_path / "model"
    flags = [f"--train_data={data}", f"--model_dir={model}", "--batch_size=32", "--threads=1"]
    assert cli.main(["train", *flags, *DIN, "--max_steps=2"]) == 0
    before = checkpoints.latest_checkpoint(str(model)).model
    assert cli.main(["train", *flags, "--max_steps=4", "--learning_rate=0.001", "--dropout=0.5"]) == 0
    after = checkpoints.latest_checkpoint(str(model)).model
    assert (before["params"].pop("dropout"), after["params"].pop("dropout")) == (0.25, 0.5)
    assert before.pop("new_keys").keys() == after.pop("new_keys").keys()  # The shares are those of the newest batches.
    assert after == before
    assert after["params"]["hidden_units"] == [8, 6]
    assert json.loads((model / "flags.json").read_text())["flags"]["model"] == "din"


@pytest.mark.parametrize(
    ("command", "given", "trained"),
    [
        ("evaluate", "--model=deepfm", "--model=din"),
        ("predict", "--hidden_units=8", "--hidden_units=8,6"),
        ("export", "--activation=relu", "--activation=tanh"),
        ("train", "--nobatch_norm", "--batch_norm=true"),
        ("evaluate", "--label=clicked", "--label="),
        ("train", "--model_params=wide=fm", "--model_params=wide=linear"),
        ("predict", "--model_params=attention_softmax=false", "--model_params=attention_softmax=true"),
        ("export", "--model_params=attention_units=6", "--model_params=attention_units=6:4"),
        ("evaluate", "--model_params=sequences=history", "--model_params=sequences="),
        ("train", "--embedding_dim=4", "--embedding_dim=2"),
    ],
)
def test_another_model_is_refused_by_the_name_of_the_setting(din, capsys, tmp_path, command, given, trained):
    text = {"--nobatch_norm": "--batch_norm=false"}.get(given, given)
    others = {"predict": f"--output={tmp_path / 'p.parquet'}", "export": f"--export_dir={tmp_path / 'e'}"}
    assert cli.main([command, *din, given, *filter(None, [others.get(command)])]) == 1
    error = capsys.readouterr().err
    directory = din[2].partition("=")[2]
    assert f"error: {text}, but the model in {directory} was trained with {trained}: leave that out" in error
    assert "Traceback" not in error
    assert checkpoints.latest_checkpoint(directory).step == 5


@pytest.mark.parametrize(
    ("given", "trained"),
    [
        ("--optimizer=sgd", "--optimizer=adam"),
        ("--embedding_optimizer=adagrad", "--embedding_optimizer=sgd"),
        ("--embedding_stddev=0.1", "--embedding_stddev=0.2"),
        ("--seed=8", "--seed=7"),
    ],
)
def test_other_optimizers_are_refused_in_training_only(din, capsys, given, trained):
    assert cli.main(["train", *din, given]) == 1
    assert f"error: {given}, but the model in" in (error := capsys.readouterr().err)
    assert f"was trained with {trained}: leave that out" in error
    if given.startswith("--optimizer"):
        assert cli.main(["evaluate", *din, given]) == 0


def test_the_estimator_refuses_alike(din, data, tmp_path):
    directory = din[2].partition("=")[2]
    params = ModelParams(TrainOp("adam", 0.1, 0.3), hidden_units=(8, 6))
    estimator = Estimator(deepfm.model_fn, directory, params, RunConfig(threads=1))

    def batches():
        return BatchReader(data, 32, epochs=1)

    message = f"--model=deepfm, but the model in {directory} was trained with --model=din: leave that out"
    for use in (
        lambda: estimator.train(batches),
        lambda: estimator.evaluate(batches),
        lambda: next(estimator.predict(batches)),
        lambda: estimator.export_saved_model(str(tmp_path)),
    ):
        with pytest.raises(UserError, match=message):
            use()


def _own(features, labels, mode, params):
    from ctr_trainer.estimator import EstimatorSpec

    width = params["width"]
    w = tf.compat.v1.get_variable("w", [2, width], initializer=tf.compat.v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(features["x"] @ w - 1.0))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(params["learning_rate"])
    step = tf.compat.v1.train.get_global_step()
    return EstimatorSpec(mode, {"y": features["x"] @ w}, loss, optimizer.minimize(loss, step))


def test_params_of_a_program_of_ones_own_are_kept_and_compared(tmp_path):
    distributed.init()

    def input_fn():
        return tf.data.Dataset.from_tensors(({"x": np.ones((4, 2), np.float32)}, np.ones(4, np.float32))).repeat(4)

    def estimator(may_change=(), **params):
        return Estimator(_own, tmp_path, {"callback": print, **params}, RunConfig(threads=1), may_change=may_change)

    first = estimator(width=3, learning_rate=0.1, decay=0.5)
    first.train(input_fn, max_steps=2)
    assert first.latest_checkpoint().model["name"] == f"{__name__}:_own"
    assert first.latest_checkpoint().model["params"] == {"width": 3, "learning_rate": 0.1, "decay": 0.5}
    estimator(width=3, learning_rate=0.01, decay=0.5).train(input_fn, max_steps=3)
    for changed in ({"width": 4, "decay": 0.5}, {"width": 3, "decay": 0.1}):
        for use in ("train", "evaluate"):
            with pytest.raises(UserError, match=r"(width=4|decay=0.1), but .* trained with (width=3|decay=0.5)"):
                getattr(estimator(learning_rate=0.1, **changed), use)(input_fn)
    estimator(may_change=["decay"], width=3, learning_rate=0.1, decay=0.1).evaluate(input_fn)


def test_the_feature_spec_and_the_statistics_are_with_each_checkpoint_too(data, tmp_path, capsys, caplog):
    model = tmp_path / "model"
    flags = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={model}", "--threads=1", "--hidden_units=8"]
    assert cli.main(["train", *flags, "--max_steps=1"]) == 0
    features = json.loads((model / "features.json").read_text())
    assert checkpoints.latest_checkpoint(str(model)).model["features"] == features
    (model / "features.json").write_text("")
    assert cli.main(["evaluate", *flags]) == 0
    assert "features.json: is empty" in caplog.text
    assert "The newest checkpoint has a copy" in caplog.text


def test_a_users_own_model_is_found_again_by_its_name(data, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_with_a_factor.py").write_text(
        "import dataclasses\n"
        "from ctr_trainer.models.layers.linear import linear\n"
        "from ctr_trainer.models.head import binary_head\n"
        "from ctr_trainer.models.params import ModelParams\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Params(ModelParams):\n"
        "    factor: float = 1.0\n"
        "def model_fn(features, labels, mode, params):\n"
        "    return binary_head(features, labels, mode, params, params.factor * linear(features))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = [f"--eval_data={data}", f"--model_dir={tmp_path / 'model'}", "--threads=1"]
    own = ["--model=mine_with_a_factor:model_fn", "--model_params=factor=3"]
    assert cli.main(["train", f"--train_data={data}", *flags, *own, "--max_steps=3"]) == 0
    assert cli.main(["evaluate", *flags, *own]) == 0
    expected = _last_json(capsys)
    assert cli.main(["evaluate", *flags]) == 0
    assert _last_json(capsys) == expected


@pytest.mark.parametrize("name", every.VARIANTS)
def test_every_model_is_given_back_as_it_was_recorded(tmp_path, monkeypatch, name):
    distributed.init()
    model = name.partition("-")[0]
    found = find_model(model)
    params = found.params_class(
        TrainOp("adamw"), hidden_units=(6,), activation="elu", **{"dropout": 0.5, **every.variants(model)[name]}
    )
    config = RunConfig(seed=9, embedding=EmbeddingConfig(optimizer=RowFtrl(initial_accumulator=0.3)))
    record = ModelRecord.of(found.model_fn, None, params, config).to_dict()
    path = checkpoints.checkpoint_path(str(tmp_path), 1)
    checkpoints.begin(path)
    checkpoints.commit(checkpoints.Checkpoint(path, 1, [], [], None, 0, model=record))
    experiment = as_trained(set(), Experiment(model=ModelSettings(model_dir=str(tmp_path))))
    flags, run = experiment.model, experiment.run
    shared = {
        name: getattr(experiment.params, name)
        for name in ("hidden_units", "dropout", "batch_norm", "activation", "label")
    }
    given_back = param_texts.parse(
        flags.model, find_model(flags.model).params_class, flags.model_params, {"train_op_fn": None, **shared}
    )
    assert given_back == dataclasses.replace(params, train_op_fn=None)
    assert (flags.model, experiment.train.optimizer.name, run.seed) == (model, "adamw", 9)
    assert run.embedding.optimizer == RowFtrl(initial_accumulator=0.3)


def test_a_finished_run_that_is_started_again_writes_a_missing_summary_only(data, tmp_path, caplog):
    model = tmp_path / "model"
    flags = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={model}", "--batch_size=32", "--threads=1"]
    flags += ["--max_steps=4", "--hidden_units=8"]
    assert cli.main(["train", *flags]) == 0
    path, saved = model / "train_summary.json", checkpoints.list_checkpoints(str(model))
    kept = {name: (model / name).read_text() for name in (path.name, "flags.json", "features.json")}
    whole = json.loads(kept[path.name])
    with caplog.at_level("INFO"):
        assert cli.main(["train", *flags]) == 0
    assert f"nothing to do: the training in {model} is at step 4, and " in caplog.text
    assert {name: (model / name).read_text() for name in kept} == kept
    path.write_text(json.dumps({"global_step": 3}))  # The summary of an earlier run, if the last one was killed.
    assert cli.main(["train", *flags]) == 0
    written = json.loads(path.read_text())
    assert written.keys() == {"workers", "global_step", "evaluation"}
    assert (written["workers"], written["global_step"]) == (whole["workers"], whole["global_step"]) == (1, 4)
    assert written["evaluation"]["auc"] == pytest.approx(whole["evaluation"]["auc"], abs=1e-6)
    assert written["evaluation"].keys() >= whole["evaluation"].keys()
    assert checkpoints.list_checkpoints(str(model)) == saved


def test_an_evaluation_that_is_made_up_is_added_to_the_summary(data, tmp_path):
    flags = [f"--train_data={data}", f"--model_dir={tmp_path}", "--batch_size=32", "--threads=1", "--max_steps=4"]
    assert cli.main(["train", *flags, "--hidden_units=8"]) == 0
    path = tmp_path / "train_summary.json"
    before = json.loads(path.read_text())
    assert cli.main(["train", *flags, "--hidden_units=8", f"--eval_data={data}"]) == 0
    after = json.loads(path.read_text())
    assert "evaluation" not in before and after.pop("evaluation")["auc"] > 0
    assert after == before and after["steps"] == 4


@pytest.mark.parametrize(("every", "steps"), [(10, [10, 20, 30]), (20, [20, 30])])
def test_a_training_stopped_in_its_second_evaluation_makes_it_up(data, tmp_path, monkeypatch, every, steps):
    flags = [f"--train_data={data}", f"--eval_data={data}", "--batch_size=32", "--threads=1", "--hidden_units=8"]
    flags += ["--epochs=3", f"--eval_steps={every}", "--best_metric=auc", "--recipe=none", f"--model_dir={tmp_path}"]
    calls, evaluate = [], InLoopEvaluation.evaluate

    def stop(self, session):
        calls.append(session)
        if len(calls) == 2:
            self._stop.ask(signal.SIGTERM)
        return evaluate(self, session)

    with monkeypatch.context() as patched:
        patched.setattr(InLoopEvaluation, "evaluate", stop)
        assert cli.main(["train", *flags]) == 128 + signal.SIGTERM
    assert not (tmp_path / "train_summary.json").exists()
    manifest = pathlib.Path(checkpoints.list_checkpoints(str(tmp_path))[-1].path, checkpoints.MANIFEST)
    written = manifest.stat().st_mtime_ns
    assert cli.main(["train", *flags]) == 0
    assert manifest.stat().st_mtime_ns == written
    found = EvaluationHistory.load(str(tmp_path))
    assert [each["step"] for each in found.evaluations] == steps
    assert found.best["step"] == 30
    assert json.loads((tmp_path / "train_summary.json").read_text())["evaluation"]["auc"] == found.best["value"]


@pytest.mark.parametrize(("owner", "name"), [(InLoopEvaluation, "evaluate"), (retention, "keep_best")])
@pytest.mark.parametrize("ended_at", [2, 3])
def test_a_training_that_ended_in_an_evaluation_keeps_the_best_like_another(
    data, tmp_path, monkeypatch, owner, name, ended_at
):
    flags = [f"--train_data={data}", f"--eval_data={data}", "--batch_size=32", "--threads=1", "--hidden_units=8"]
    flags += ["--epochs=3", "--eval_steps=10", "--save_checkpoints_steps=10", "--best_metric=auc", "--recipe=none"]
    assert cli.main(["train", *flags, f"--model_dir={tmp_path / 'whole'}"]) == 0
    whole, calls, call = EvaluationHistory.load(str(tmp_path / "whole")), [], getattr(owner, name)
    assert whole.best["step"] == whole.evaluations[-1]["step"] == 30

    def end(*given):
        calls.append(given)
        if len(calls) == ended_at:
            raise UserError("killed")
        return call(*given)

    flags += [f"--model_dir={tmp_path / 'ended'}"]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, end)
        assert cli.main(["train", *flags]) == 1
    assert cli.main(["train", *flags]) == 0
    found = EvaluationHistory.load(str(tmp_path / "ended"))
    assert [each["step"] for each in found.evaluations] == [10, 20, 30]
    assert found.best["step"] == 30 and found.best["value"] == pytest.approx(whole.best["value"], abs=1e-6)
    assert checkpoints.list_checkpoints(str(tmp_path / "ended"))


def test_every_command_takes_the_best_checkpoint_if_one_is_kept_and_says_so(data, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    model, where = tmp_path / "model", f"--eval_data={data}"
    still = ["--learning_rate=0", "--embedding_learning_rate=0", "--threads=1"]  # So the first stays the best.
    flags = [f"--train_data={data}", where, f"--model_dir={model}", "--batch_size=100", "--recipe=none", *still]
    own = ["--hidden_units=8", "--epochs=3", "--eval_epochs=1", "--best_metric=auc"]
    assert cli.main(["train", *flags, *own, f"--export_dir={tmp_path / 'trained'}"]) == 0

    def step_of(command, *more):
        caplog.clear()
        assert cli.main([command, f"--model_dir={model}", *more]) == 0
        found = _last_json(capsys)["global_step"]
        (line,) = [each for each in caplog.messages if each.startswith(f"using the checkpoint of step {found} of ")]
        return found, line.partition(f"{model}: ")[2]

    best = (3, f"the best by auc ({EvaluationHistory.load(model).best['value']:.6g}); the newest is of step 9")
    assert step_of("evaluate", where) == step_of("predict", where, f"--output={tmp_path / 'p.parquet'}") == best
    assert step_of("export", f"--export_dir={tmp_path / 'e'}") == step_of("publish", f"--to={tmp_path / 'to'}") == best
    for export in ("trained", "e"):  # The training itself exported the same checkpoint.
        assert (
            cli.main(["evaluate", f"--saved_model={tmp_path / export}", f"--eval_data={data.parent / 'rows.csv'}"]) == 0
        )
        assert _last_json(capsys)["global_step"] == 3
    found, why = step_of("evaluate", where, "--checkpoint=latest")
    assert found == 9 and why.startswith("the newest; the best by auc (") and why.endswith(" was of step 3")
    assert step_of("evaluate", where, "--checkpoint=9") == (9, "as asked; the newest is of step 9")

    (model / "best").rename(tmp_path / "best")
    shutil.rmtree(model / "checkpoints" / "step-0000000003")
    found, why = step_of("evaluate", where)
    assert found == 9 and why.endswith("was of step 3, which is no longer there")
    (tmp_path / "best").rename(model / "best")
    shutil.rmtree(model / "checkpoints")
    assert step_of("evaluate", where)[0] == 3  # The best checkpoint alone tells what the model is.
