"""From the flags of training to its settings."""

import contextlib
import threading

import pytest

from ctr_trainer.commands import launch
from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.build import reader
from ctr_trainer.commands.experiment.checks import check_training
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.optimizers import Adagrad, Lamb
from ctr_trainer.settings.train_settings import Schedule
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.messages.errors import UserError
from tests import small


def _experiment(*arguments):
    return flags.parse(flags.EXPERIMENT, arguments)[0]


def _train_op(*arguments):
    return TrainOp(**vars(_experiment(*arguments).train))


def test_an_option_of_horovods_exchange_needs_it():
    check_training(_experiment("--fp16_allreduce", "--dense_exchange=horovod"), EvaluationConfig())
    with pytest.raises(UserError, match="--fp16_allreduce: .*give --dense_exchange=horovod"):
        check_training(_experiment("--fp16_allreduce"), EvaluationConfig())


def test_num_readers_threads_read_the_data(tmp_path):
    distributed.init()
    path = str(small.make(tmp_path, rows=64))
    experiment = _experiment("--num_readers=3", "--epochs=0", f"--model_dir={tmp_path}")

    def reading():
        return [thread for thread in threading.enumerate() if thread.name == f"reading {path}"]

    with contextlib.closing(iter(reader(experiment, path))) as batches:
        next(batches)
        assert len(reading()) == 3  # None of them ends by itself, since the epochs do not.
    assert not reading()


def test_max_rows_on_disk_is_refused_before_data_is_converted(tmp_path):
    distributed.init()
    small.write_csv(tmp_path / "rows.csv", 20)
    (tmp_path / "spec.toml").write_text(f"{small.SPEC}\n[[limits]]\ntable = 'dim4'\nmax_rows = 9\n")
    given = ["--table_memory=1MB", f"--feature_spec={tmp_path / 'spec.toml'}", f"--model_dir={tmp_path / 'model'}"]
    with pytest.raises(UserError, match=r"table dim4: .*max_rows in \[\[limits\]\] .*leave out one of the two"):
        reader(_experiment(*given), str(tmp_path / "rows.csv"))
    assert not (tmp_path / "model").exists()


def test_the_defaults_of_flags_are_those_of_the_settings():
    assert _train_op() == TrainOp()


def test_flags_make_the_train_op_of_the_same_settings():
    found = _train_op(
        *("--optimizer=lamb", "--optimizer_params=beta1=0.8,beta2=0.9", "--optimizer_params=weight_decay=0.1"),
        *("--learning_rate=0.1", "--embedding_learning_rate=0.2", "--clip_norm=4", "--lr_groups=mlp:0.5,linear:2"),
        *("--lr_schedule=piecewise", "--lr_schedule_params=unit=epoch,warmup_steps=0.5"),
        "--lr_schedule_params=boundaries=1:2.5,factors=1:0.1:0.01",
    )
    assert found == TrainOp(
        Lamb(beta1=0.8, beta2=0.9, weight_decay=0.1),
        learning_rate=0.1,
        embedding_learning_rate=0.2,
        clip_norm=4.0,
        lr_groups=("mlp:0.5", "linear:2"),
        schedule=Schedule("piecewise", 0.5, unit="epoch", boundaries=(1.0, 2.5), factors=(1.0, 0.1, 0.01)),
    )
    assert _train_op("--optimizer_params=weight_decay=0.2").optimizer == Adagrad(weight_decay=0.2)


@pytest.mark.parametrize(("text", "expected"), [("2.5", 2.5), ("balanced", "balanced")])
def test_the_positive_weight_is_a_number_or_balanced(text, expected):
    assert _experiment(f"--positive_weight={text}").params.positive_weight == expected


@pytest.mark.parametrize("text", ["balance", "-1", "nan", "inf"])
def test_another_positive_weight_is_refused(text):
    with pytest.raises(UserError, match=f"--positive_weight={text}: expected balanced or a number, .* above 0"):
        _experiment(f"--positive_weight={text}")


def test_flags_that_cannot_work_together_are_refused():
    with pytest.raises(UserError, match="needs --lr_schedule_params=decay_steps"):
        _train_op("--lr_schedule=exponential", "--lr_schedule_params=decay_rate=0.5")
    with pytest.raises(UserError, match="--lr_schedule_params=boundaries=a: expected numbers as in 0.5:2"):
        _train_op("--lr_schedule=piecewise", "--lr_schedule_params=boundaries=a,factors=1:2")


def test_a_deterministic_run_refuses_what_depends_on_time(monkeypatch):
    with pytest.raises(UserError, match="--save_checkpoints_secs=5.*: use"):
        check_training(_experiment("--deterministic", "--save_checkpoints_secs=5"), EvaluationConfig())
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    with pytest.raises(UserError, match="horovodrun --autotune .*: leave out"):
        check_training(_experiment("--deterministic"), EvaluationConfig())


@pytest.mark.parametrize("value", ["0.9", "0.5"])
def test_a_setting_of_another_optimizer_is_refused_even_at_its_default_value(value):
    with pytest.raises(
        UserError, match=f"--embedding_optimizer=adagrad has no --embedding_optimizer_params=beta1.* {value}"
    ):
        _experiment(f"--embedding_optimizer_params=beta1={value}")
    with pytest.raises(UserError, match=f"--optimizer=adagrad has no --optimizer_params=momentum.* {value}"):
        _train_op(f"--optimizer_params=momentum={value}")


def test_launch_accepts_settings_that_the_recipe_completes():
    flags = ["--train_data=a", "--eval_data=b", "--model_dir=c", "--early_stopping_patience=3"]
    assert launch._experiment(flags).data.eval_data == "b"
    with pytest.raises(UserError, match="needs evaluations while training"):
        launch._experiment([*flags, "--recipe=none"])
