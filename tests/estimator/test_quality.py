"""What the end of a run says of the quality of its model."""

import pytest

from ctr_trainer.estimator.quality import Rates, advise
from ctr_trainer.settings.schedule import Schedule

FALLING = Rates(Schedule("cooldown"), Schedule("cooldown"), 100)


def _evaluation(step=100, copc=1.0, examples=100_000, auc=0.7, loss=0.5, clicks=0.2):
    return {"step": step, "copc": copc, "real_mean": clicks, "examples": examples, "auc": auc, "loss": loss}


def _of(steps):
    return Rates(Schedule("cooldown"), Schedule("cooldown"), steps)


def _advise(*evaluations, rates=FALLING, **settings):
    return advise(list(evaluations), "auc", "max", rates, **settings)


@pytest.mark.parametrize(
    ("rates", "settings", "flag", "why"),
    [
        (Rates(Schedule(), Schedule(), 100), {}, "--lr_schedule=cooldown", "did not fall"),
        (Rates(Schedule("cooldown"), Schedule(), None), {}, "--max_steps", "was not known"),
        (Rates(Schedule("linear"), Schedule(), 400), {}, "--lr_schedule=plateau", "was stopped before"),
        (Rates(Schedule("linear"), Schedule(), 100), {}, "--embedding_lr_schedule=cooldown", "rows' learning rate"),
        (FALLING, {}, "--embedding_l2", "another click rate"),
        (FALLING, dict(positive_weight=2.0), "--positive_weight=1", "on purpose"),
        (None, {}, "a learning rate that falls", "from step to step"),
    ],
)
def test_predictions_that_are_off_name_what_moves_them(rates, settings, flag, why):
    (found,) = _advise(_evaluation(copc=1.08), rates=rates, **settings)
    assert found.flag.startswith(flag) and why in found.why
    assert found.why.startswith("copc = 1.080 at the end: too few clicks are predicted; ")


def test_predictions_that_are_off_while_the_loss_still_falls_say_to_train_longer():
    losses = [_evaluation(50, copc=1.1, loss=0.5), _evaluation(100, copc=1.08, loss=0.49)]
    (found,) = _advise(*losses)
    assert found.flag == "--epochs or --max_steps"
    assert "the loss still falls, from 0.5 at the evaluation before to 0.49: train longer" in found.why
    (found,) = _advise(losses[1], _evaluation(150, copc=1.08, loss=0.4899))
    assert found.flag == "--embedding_l2"
    (found,) = _advise(*losses, positive_weight=2.0)
    assert found.flag == "--positive_weight=1"


@pytest.mark.parametrize("rates", [None, FALLING, Rates(Schedule(), Schedule(), 100), _of(60)])
def test_predictions_of_rare_clicks_that_are_off_say_to_train_longer(rates):
    (found,) = _advise(_evaluation(step=60, copc=0.8, examples=1_000_000, clicks=0.002), rates=rates)
    assert found.flag == "more --epochs with --eval_epochs=1 --best_metric=auc"
    assert "only 0.20% of the examples are positive" in found.why


def test_too_many_clicks_of_a_label_are_named_by_it():
    found = {"step": 100, "copc/buy": 0.9, "real_mean/buy": 0.2, "examples": 100_000}
    (found,) = advise([found], None, None, FALLING)
    assert found.why.startswith("copc/buy = 0.900 at the end: too many clicks are predicted")


@pytest.mark.parametrize(
    "evaluation",
    [
        _evaluation(copc=1.029),
        _evaluation(copc=0.971),
        _evaluation(copc=1.06, examples=3000),  # whose standard error is 0.037
        _evaluation(copc=float("nan")),
    ],
)
def test_what_is_calibrated_or_may_be_is_not_advised_on(evaluation):
    assert _advise(evaluation) == []


def test_a_model_that_was_best_at_its_first_evaluation_is_to_be_regularized():
    (found,) = _advise(*(_evaluation(step, auc=auc) for step, auc in ((10, 0.74), (20, 0.73), (30, 0.70))))
    assert found.flag == "--embedding_l2, --embedding_initial_accumulator, --dropout or --max_steps"
    assert "best at the first evaluation, 0.7400 at step 10, and is 0.7000 at step 30" in found.why


def test_a_model_that_still_learns_at_its_last_evaluation_is_to_be_trained_longer():
    evaluations = [_evaluation(step, auc=auc) for step, auc in ((10, 0.60), (20, 0.65), (30, 0.70))]
    (found,) = _advise(*evaluations)
    assert found.flag == "--epochs or --max_steps"
    assert "best at the last evaluation, 0.7000 at step 30, and 0.6500 before it" in found.why
    assert _advise(*evaluations[1:]) == []  # two are too few
    assert _advise(*evaluations, _evaluation(40, auc=0.7001)) == []  # it has come to its best


def test_a_best_in_the_middle_is_as_it_should_be():
    assert _advise(*(_evaluation(step, auc=auc) for step, auc in ((10, 0.70), (20, 0.72), (30, 0.71)))) == []


@pytest.mark.parametrize(("steps", "times"), [(7, 5), (34, 2)])
def test_a_run_of_few_steps_is_too_short_whether_evaluated_or_not(steps, times):
    for evaluations in ([], [_evaluation(steps)]):
        (found,) = _advise(*evaluations, rates=_of(steps))
        assert found.flag == "--epochs or --max_steps"
        assert found.why.startswith(f"the run had {steps} steps, ") and f"; {times} times as many" in found.why


@pytest.mark.parametrize("rates", [None, _of(None), _of(35)])
def test_a_run_of_enough_or_of_unknown_steps_is_not_too_short(rates):
    assert _advise(rates=rates) == []


def test_predictions_that_are_off_after_few_steps_are_so_by_noise():
    (found,) = _advise(_evaluation(step=60, copc=1.08), rates=_of(60))
    assert found.flag == "more --epochs with a higher --embedding_initial_accumulator"
    assert "60 steps are few" in found.why
