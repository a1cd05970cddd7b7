"""Learning rates that change with the step: the equations of `settings.schedule.Schedule` as TensorFlow operations."""

import math
from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.settings.schedule import Schedule
from ctr_trainer.system.messages.errors import UserError

COOLDOWN_SHARE = 0.2  # Of the run's steps.
# Largest error of a quotient, added before the quotient is rounded down.
_ROUNDING = 1e-9


class Plateau:
    """A learning-rate factor in the training graph, which evaluations without an improvement lower.

        factor = max(decay_rate ** falls, end)

    Attributes:
      patience: number of evaluations without an improvement, counted since the last improvement or the last fall, that
        cause a fall.
      factor: scalar float32 variable. It is not part of checkpoints, because it follows from the evaluations so far.
    """

    def __init__(self, decay_rate: float, end: float, patience: int) -> None:
        self.patience = patience
        self._decay_rate, self._end = decay_rate, end
        self.factor = tf1.get_variable(
            "plateau_factor", initializer=1.0, trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
        )
        self._fed = tf1.placeholder(tf.float32, [])
        self._assign = self.factor.assign(self._fed).op

    def set(self, session: tf1.Session, falls: int) -> float:
        """Sets the factor to its value after this number of falls, and returns it."""
        factor = max(self._decay_rate**falls, self._end)
        session.run(self._assign, {self._fed: factor})
        return factor


def cooldown_steps(steps: int, share: float) -> int:
    """Returns the number of steps in a share of a run's steps, at least 1."""
    return max(int(share * steps), 1)


def factor(
    schedule: Schedule, step: tf.Tensor | tf.Variable, run: RunLength, plateau: Plateau | None = None
) -> tf.Tensor:
    """Returns the factor of a learning rate at the global step `step`, a scalar float32.

    Raises:
      UserError: the unit is an epoch, but the number of steps per epoch is not known.
    """
    unit, begins = _unit(schedule, run)
    found = tf.constant(1.0)
    if schedule.warmup_steps:
        done = tf.cast(step, tf.float32) + float(1.0 - begins)
        found = tf.minimum(1.0, done / (schedule.warmup_steps * unit))
    if schedule.name == "plateau":
        assert plateau is not None
        return found * plateau.factor
    if schedule.name == "piecewise":
        changes = [math.ceil(begins + boundary * unit - _ROUNDING) for boundary in schedule.boundaries]
        passed = [tf.cast(tf.cast(step, tf.int64) >= at, tf.int32) for at in changes]
        return found * tf.gather(schedule.factors, tf.add_n(passed))
    first, steps = span(schedule, run)
    if not steps:
        return found
    x = tf.maximum(tf.cast(step, tf.float64) - first, 0.0) / steps
    if schedule.name == "step":
        x = tf.floor(x + _ROUNDING)
    x = tf.cast(x, tf.float32)
    if schedule.name in ("exponential", "step"):
        return found * tf.maximum(schedule.decay_rate**x, schedule.end)
    x = tf.minimum(x, 1.0)
    left = (1.0 + tf.cos(math.pi * x)) / 2 if schedule.name == "cosine" else 1.0 - x
    return found * (schedule.end + (1.0 - schedule.end) * left)


def factors(schedule: Schedule, steps: Sequence[int], run: RunLength) -> list[float]:
    """Returns the factor at each of the steps, see `factor`."""
    with tf.Graph().as_default(), tf1.Session() as session:
        return list(map(float, session.run([factor(schedule, tf.constant(step), run) for step in steps])))


def span(schedule: Schedule, run: RunLength) -> tuple[float, float]:
    """Returns (global step at which the decay begins, number of its steps). Without a decay, the number is 0."""
    end = run.end()
    if schedule.name in ("constant", "piecewise", "plateau") or (end is None and schedule.depends_on_end):
        return run.begin, 0
    unit, begins = _unit(schedule, run)
    if schedule.name == "cooldown" and end is not None:
        steps = schedule.decay_steps * unit or cooldown_steps(end - run.begin, COOLDOWN_SHARE)
        return end - steps, steps
    warm = begins + schedule.warmup_steps * unit
    if end is None or schedule.decay_steps:
        return warm, schedule.decay_steps * unit
    first = max(run.begin, warm)
    return first, max(end - first, 1)


def _unit(schedule: Schedule, run: RunLength) -> tuple[float, float]:
    """Returns the schedule's unit in steps, and the global step from which the schedule counts."""
    if schedule.unit == "step":
        return 1.0, float(run.data_begin)
    if run.steps_per_epoch is None:
        raise UserError(
            "unit=epoch: the input does not say how many batches an epoch has, as a tf.data.Dataset: count in "
            "steps, unit=step"
        )
    return run.steps_per_epoch, run.first_epoch
