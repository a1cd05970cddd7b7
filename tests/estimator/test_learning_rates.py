"""Learning rates of real runs: at their end, when they go on, and when evaluations do not improve."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EvalSpec
from ctr_trainer.estimator.optimize import TrainOp, rate_lines
from ctr_trainer.estimator.run_length import Epochs, RunLength
from ctr_trainer.settings.train_settings import Schedule, check_plateau
from ctr_trainer.system.messages.errors import UserError
from tests.checkpoints import values
from tests.estimator import deepfm

RATE, STEPS = 0.1, 20  # 320 rows in batches of 16.


class Killed(Exception):
    """The process ends here."""


class Rates(tf.compat.v1.train.SessionRunHook):
    """Keeps the dense learning rate by step, relative to `RATE`, and ends the run after a step if told to.

    Args:
      kill_after: the global step after which `Killed` is raised; None for none.
    """

    def __init__(self, kill_after=None):
        self.by_step, self._kill_after = {}, kill_after

    def begin(self):
        graph = tf.compat.v1.get_default_graph()
        step = tf.compat.v1.train.get_global_step(graph).read_value()
        self._fetches = {"rate": graph.get_tensor_by_name("learning_rate:0"), "step": step}

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        number = len(self.by_step)
        self.by_step[number] = float(run_values.results["rate"]) / RATE
        if self._kill_after == number + 1:
            raise Killed


def _train(
    data, model_dir, hooks=(), epochs=1, max_steps=None, evaluation=None, save_every=0, batch_size=16, **settings
):
    train_op = TrainOp("adagrad", RATE, 0.3, **{"schedule": Schedule("linear"), **settings})
    estimator = deepfm.estimator(model_dir, train_op, save_checkpoints_steps=save_every, summary_steps=0, log_steps=1)
    input_fn = deepfm.batches(data, batch_size, epochs=epochs)
    estimator.train(input_fn, hooks, max_steps=max_steps, evaluation=evaluation)
    return estimator


def _rates(*arguments, **settings):
    rates = Rates()
    _train(*arguments, [rates], **settings)
    return list(rates.by_step.values())


def test_the_dense_rate_runs_out_over_the_epochs_or_until_max_steps(data, tmp_path):
    falling = [1 - step / 40 for step in range(40)]
    assert _rates(data, tmp_path / "epochs", epochs=2) == pytest.approx(falling, abs=1e-6)
    assert _rates(data, tmp_path / "steps", max_steps=10) == pytest.approx(falling[::4], abs=1e-6)
    by_default = _rates(data, tmp_path / "default", schedule=TrainOp().schedule)
    assert by_default == pytest.approx([1] * (STEPS - 3) + [0.75, 0.5, 0.25])  # the last fifth


OF_DENSE, OF_ROWS = (f"the learning rate of the {what}" for what in ("dense variables", "rows"))
OF_BOTH = "the learning rate of the dense variables and of the rows"
STAIRS = Schedule("step", warmup_steps=2, decay_steps=10, decay_rate=0.1)
IN_EPOCHS = Schedule("piecewise", 0.1, unit="epoch", boundaries=(0.5, 1.25), factors=(1.0, 0.5, 0.1))


def test_rates_by_epoch_are_those_of_its_steps(data, tmp_path):
    found = _rates(data, tmp_path, epochs=2, schedule=IN_EPOCHS)
    assert found == pytest.approx([0.5, 1.0] + [1.0] * 8 + [0.5] * 15 + [0.1] * 15)
    accumulated = _rates(data, tmp_path / "2", epochs=2, schedule=IN_EPOCHS, accumulation_steps=2)
    assert accumulated[::2] == pytest.approx([1.0] * 5 + [0.5] * 8 + [0.1] * 7)


def test_rates_by_epoch_resume_at_their_place(data, tmp_path):
    """Half an epoch is left of the first one, and 32 rows a step have 10 steps in an epoch."""
    with pytest.raises(Killed):
        _train(data, tmp_path, [Rates(kill_after=11)], save_every=10, schedule=IN_EPOCHS)
    found = _rates(data, tmp_path, epochs=2, schedule=IN_EPOCHS, batch_size=32)
    assert found == pytest.approx([0.5] * 8 + [0.1] * 7)


def test_rows_keep_their_rate_until_the_last_tenth_of_the_run(data, tmp_path):
    """With a dense rate of 0 for all, the rows differ by their own schedule alone, and only in the last two steps."""
    runs = {}
    for name in ("cooldown", "constant"):
        settings = dict(schedule=Schedule(), embedding_lr_schedule=name, save_every=STEPS - 2)
        estimator = _train(data, tmp_path / name, **settings)
        runs[name] = [values(estimator.find_checkpoint(step)) for step in ("18", "20")]
    (first, last), (constant_first, constant_last) = runs["cooldown"], runs["constant"]
    assert all(np.array_equal(first[name], constant_first[name]) for name in first)
    assert not all(np.array_equal(last[name], constant_last[name]) for name in last)


def test_a_run_that_was_killed_goes_on_along_the_same_rates(data, tmp_path):
    whole = values(_train(data, tmp_path / "whole").latest_checkpoint())
    with pytest.raises(Killed):
        _train(data, tmp_path / "killed", [Rates(kill_after=13)], save_every=6)
    rates = Rates()
    again = _train(data, tmp_path / "killed", [rates]).latest_checkpoint()
    assert list(rates.by_step.values()) == pytest.approx([1 - step / STEPS for step in range(12, STEPS)], abs=1e-6)
    for name, value in values(again).items():
        np.testing.assert_array_equal(value, whole[name], name)


def test_a_run_that_goes_on_after_its_end_begins_anew_and_says_so(data, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        _train(data, tmp_path)
        assert _rates(data, tmp_path, epochs=2) == pytest.approx([1 - step / STEPS for step in range(STEPS)], abs=1e-6)
    assert f"{OF_BOTH}: linear, 1 at step 20 and 0 at step 40 of its full value" in caplog.messages


COOLDOWN, NEXT = Schedule("cooldown"), dict(begin=20, start=20, batches=20)


@pytest.mark.parametrize(
    ("schedule", "rows", "run", "said"),
    [
        (IN_EPOCHS, IN_EPOCHS, dict(batches=40), ["piecewise, 0.5 at step 0 and 0.1 at step 40 of its full value"]),
        (STAIRS, STAIRS, NEXT, ["step, 0.1 at step 20 and 0.001 at step 40 of its full value"]),
        (
            *(STAIRS, COOLDOWN, NEXT),
            [
                "step, 0.1 at step 20 and 0.001 at step 40 of its full value",
                "cooldown, 1 at step 20 and 0 at step 40 of its full value, decaying from step 36 on",
            ],
        ),
        (Schedule(), Schedule(), NEXT, []),
        (COOLDOWN, COOLDOWN, {}, ["cooldown, constant, because the number of steps of this run is not known"]),
    ],
)
def test_each_learning_rate_that_changes_has_one_true_line(schedule, rows, run, said):
    length = RunLength(epochs=Epochs(20), **run)
    lines = list(rate_lines(schedule, rows, length))
    names = [OF_BOTH] if schedule == rows else [OF_DENSE, OF_ROWS]
    assert len(lines) == len(said)
    assert all(line.startswith(f"{name}: {text}") for line, name, text in zip(lines, names, said, strict=False))


def test_a_run_that_is_given_more_steps_before_its_end_says_so():
    length = RunLength(start=10, batches=30, earlier_end=20)
    assert next(rate_lines(COOLDOWN, COOLDOWN, length)) == (
        "this run ends at step 40, and until step 10 it was to end at 20"
    )


def test_rows_follow_the_dense_schedule_unless_they_have_their_own(data, tmp_path):
    schedule = Schedule("step", decay_steps=5, decay_rate=0.1, warmup_steps=3)
    followed, own = (
        values(_train(data, tmp_path / name, schedule=schedule, embedding_lr_schedule=name).latest_checkpoint())
        for name in ("auto", "cooldown")
    )
    assert not np.array_equal(own["rows"], followed["rows"])


def _plateau(patience=1, end=0.0):
    return dict(schedule=Schedule("plateau", decay_rate=0.5, end=end, patience=patience))


def _evaluation(data, **settings):
    # Nothing is better by 1 than the first evaluation.
    settings = {"best_metric": "auc", "early_stopping_min_delta": 1.0, **settings}
    return EvalSpec(lambda: BatchReader(data, 32, shuffle=False, epochs=1), every_n_steps=4, **settings)


def test_the_rate_falls_at_a_plateau_and_stays_low_after_a_resume(data, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        found = _rates(data, tmp_path, evaluation=_evaluation(data), max_steps=14, **_plateau(end=0.2))
        assert found == pytest.approx([1.0] * 8 + [0.5] * 4 + [0.25] * 2)
        found = _rates(data, tmp_path, evaluation=_evaluation(data), **_plateau(end=0.2))
    # The evaluation at the end, of step 14, lowers it as well.
    assert found == pytest.approx([0.2] * 6)
    said = caplog.messages
    assert "evaluation at step 8: no improvement; learning rates fall to 0.5 of their full value" in said
    assert "learning rates resume at 0.2 of their full value, because of the evaluations so far" in said
    assert "current lr: 0.050000" in said and "current lr: 0.020000" in said


def test_the_rate_falls_before_early_stopping_ends_the_run(data, tmp_path):
    found = _rates(data, tmp_path, evaluation=_evaluation(data, early_stopping_patience=3), **_plateau(patience=2))
    assert found == pytest.approx([1.0] * 12 + [0.5] * 4)


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (None, "give eval_steps and best_metric"),
        (dict(best_metric=None), "give best_metric"),
        (dict(early_stopping_patience=2), "early_stopping_patience=2 would end the training before"),
    ],
)
def test_a_plateau_without_evaluations_to_go_by_is_refused(data, tmp_path, evaluation, message):
    evaluation = evaluation and _evaluation(data, **evaluation)
    with pytest.raises(UserError, match=message):
        check_plateau(2, evaluation)
    if evaluation is None:
        with pytest.raises(UserError, match=message):
            _train(data, tmp_path, **_plateau(patience=2))
