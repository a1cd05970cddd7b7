"""Which flag is most likely to make a model better, by what its evaluations found."""

import dataclasses
import math
import typing

from ctr_trainer.estimator.evaluation_history import is_better
from ctr_trainer.settings.schedule import Schedule

COPC_RANGE = (0.97, 1.03)
_FEWEST_EVALUATIONS = 3
# Below these a run is too short to learn, and for the noise of its last steps to average out (docs/accuracy.md).
_FEWEST_STEPS = 35
_FEWEST_CALIBRATED_STEPS = 100
# How much better a last evaluation must be than the one before it, relative to that, to speak of a rise.
_RISE = 0.002
# How much lower a last loss must be than the one before it, relative to that, to speak of a fall.
_FALL = 0.001
# Below this share of positive examples an epoch has too few of them for a change of any other flag to be judged by.
_RARE = 0.01


@dataclasses.dataclass(frozen=True)
class Rates:
    """How the learning rates of a run change.

    Attributes:
      dense, rows: their `Schedule`s.
      end: the global step that the run ends at; None if it is not known.
    """

    dense: Schedule
    rows: Schedule
    end: int | None


@dataclasses.dataclass(frozen=True)
class Advice:
    """What one rule has found.

    Attributes:
      flag: to change, with its value.
      why: in words.
    """

    flag: str
    why: str


def advise(evaluations, metric, direction, rates, positive_weight=1.0):
    """Returns a list of `Advice` after a run, from its length and its evaluations; [] if there is no reason.

    Args:
      evaluations: of `EvaluationHistory`, by ascending step; the last is the run's end.
      metric, direction: by which they are compared, `max` or `min`; None for none.
      rates: `Rates`; None if they are not known.
      positive_weight: of the loss.
    """
    found = [_too_short(rates)]
    if evaluations:
        found += [_miscalibrated(evaluations, name, rates, positive_weight) for name in _named(evaluations[-1], "copc")]
    if metric and len(evaluations) >= _FEWEST_EVALUATIONS:
        found.append(_best_at_an_end(evaluations, metric, direction))
    return [each for each in found if each]


def _named(evaluation, metric):
    return [name for name in evaluation if name.split("/")[0] == metric]


def _too_short(rates):
    """Returns the Advice for a run of so few steps that longer ones are better on any data."""
    if rates is None or not rates.end or rates.end >= _FEWEST_STEPS:
        return None
    times = -(-_FEWEST_STEPS // rates.end)
    why = f"the run had {rates.end} steps, too few to learn what even small data say; {times} times as many are enough"
    return Advice("--epochs or --max_steps", why)


def _miscalibrated(
    evaluations: list[dict[str, typing.Any]], name: str, rates: Rates | None, positive_weight: float
) -> Advice | None:
    """Returns Advice for a COPC outside `COPC_RANGE` that the number of examples does not explain, or None.

    A model whose loss still falls, or whose positive examples are rare, is to be trained longer: other flags that move
    its predictions, such as a penalty or slower rows, would keep it from learning what it has not learned yet.
    """
    last = evaluations[-1]
    value, clicks = last[name], last.get(name.replace("copc", "real_mean", 1), math.nan)
    if not math.isfinite(value) or not 0 < clicks < 1 or COPC_RANGE[0] <= value <= COPC_RANGE[1]:
        return None
    # The standard error of a mean of n labels, relative to the mean.
    error = math.sqrt((1 - clicks) / (last["examples"] * clicks))
    if abs(value - 1) <= 2 * error:
        return None
    side = "too few" if value > 1 else "too many"
    losses = [each.get("loss", math.nan) for each in evaluations[-2:]]
    if positive_weight != 1:
        flag, why = "--positive_weight=1", f"--positive_weight={positive_weight:g} moves the predictions on purpose"
    elif losses[-1] < (1 - _FALL) * losses[0]:
        flag = "--epochs or --max_steps"
        why = f"the loss still falls, from {losses[0]:.5g} at the evaluation before to {losses[-1]:.5g}: train longer"
    elif clicks < _RARE and len(evaluations) < _FEWEST_EVALUATIONS:
        flag = "more --epochs with --eval_epochs=1 --best_metric=auc"
        why = f"only {clicks:.2%} of the examples are positive, so train until the loss of an evaluation stops falling"
    else:
        flag, why = _for_calibration(last["step"], rates)
    return Advice(flag, f"{name} = {value:.3f} at the end: {side} clicks are predicted; {why}")


def _for_calibration(step: int, rates: Rates | None) -> tuple[str, str]:
    """Returns (flag, why) for a model that has learned what its data say of the click rate."""
    jitter = "predictions move up and down from step to step by as much"
    if rates is None:
        return "a learning rate that falls", f"where it stays, {jitter}"
    if rates.dense.name == "constant":
        return "--lr_schedule=cooldown", f"the dense variables' learning rate did not fall, and {jitter}"
    if rates.dense.depends_on_end and rates.end is None:
        return "--max_steps", f"learning rates did not fall since the number of steps was not known, and {jitter}"
    if rates.dense.depends_on_end and step < rates.end:
        flag = "--lr_schedule=plateau --plateau_patience=1 --decay_rate=0.1"
        return flag, f"the run was stopped before its learning rates had fallen, and {jitter}"
    if step < _FEWEST_CALIBRATED_STEPS:
        why = f"{step} steps are few, so the click rate of the last ones, over which learning rates fall, is noise"
        return "more --epochs with a higher --embedding_initial_accumulator", why
    if rates.rows.name == "constant":
        return "--embedding_lr_schedule=cooldown", f"the rows' learning rate did not fall, and {jitter}"
    why = "learning rates had fallen, so the model overfits, or the data have another click rate than those trained on"
    return "--embedding_l2", why


def _best_at_an_end(evaluations, metric, direction):
    """Returns the Advice if the first evaluation was the best one, or the last one was still better by far."""
    values = [each.get(metric, math.nan) for each in evaluations]
    best = 0
    for place, value in enumerate(values):
        if is_better(value, values[best], direction):
            best = place
    where = f"{metric} was best at the {{}} evaluation, {values[best]:.4f} at step {evaluations[best]['step']}"
    if best == 0 and not math.isnan(values[0]):
        last = f"{values[-1]:.4f} at step {evaluations[-1]['step']}"
        why = f"{where.format('first')}, and is {last}: the model overfits; regularize it, or train for fewer steps"
        return Advice("--embedding_l2, --embedding_initial_accumulator, --dropout or --max_steps", why)
    if best == len(values) - 1 and abs(values[-1] - values[-2]) > _RISE * abs(values[-2]):
        why = f"{where.format('last')}, and {values[-2]:.4f} before it: the model still learns; train it longer"
        return Advice("--epochs or --max_steps", why)
    return None
