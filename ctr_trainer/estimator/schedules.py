"""Learning rates that change with the step."""

import dataclasses
import math

import tensorflow as tf

from ctr_trainer.estimator import plateau
from ctr_trainer.graph_notes.run_length import StepsOfEpochs
from ctr_trainer.messages.errors import UserError

UNITS = ("step", "epoch")
COOLDOWN_SHARE = 0.2  # Of the run's steps.
# By schedule, the settings that it takes, besides the warm-up.
_SETTINGS = {
    "constant": (),
    "linear": ("decay_steps", "end"),
    "cosine": ("decay_steps", "end"),
    "exponential": ("decay_steps", "decay_rate", "end"),
    "step": ("decay_steps", "decay_rate", "end"),
    "piecewise": ("boundaries", "factors"),
    "cooldown": ("decay_steps", "end"),
    "plateau": ("decay_rate", "end", "patience"),
}
SCHEDULES = tuple(_SETTINGS)
# Those whose length is the run's where `decay_steps` is 0.
OF_THE_RUN = ("linear", "cosine", "cooldown")
_FLAGS = {
    "decay_steps": "decay_steps",
    "decay_rate": "decay_rate",
    "end": "end_learning_rate",
    "patience": "plateau_patience",
    "boundaries": "lr_boundaries",
    "factors": "lr_factors",
}
# What a floor may be short of, by the rounding of a division.
_ROUNDING = 1e-9


def cooldown_steps(steps, share):
    """-> how many of a run's steps a share of them is, at least 1."""
    return max(int(share * steps), 1)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a learning rate is multiplied by at optimizer step t, counted from 0: warm-up, then decay.

        factor(t) = min(1, (t + 1) / warmup_steps) * decay(max(t - first, 0) / steps)

        constant:     decay(x) = 1
        linear:       decay(x) = 1 - (1 - end) * min(x, 1)
        cosine:       decay(x) = end + (1 - end) * (1 + cos(pi * min(x, 1))) / 2
        exponential:  decay(x) = max(decay_rate ** x, end)
        step:         decay(x) = max(decay_rate ** floor(x), end)
        piecewise:    factors[i] in place of decay(x), where i of the boundaries are at most t
        cooldown:     as linear
        plateau:      max(decay_rate ** falls, end), see `plateau`

    With `decay_steps`, the decay begins when the warm-up is over (first = warmup_steps) and takes decay_steps; a
    cooldown takes the last decay_steps of the run. Without `decay_steps`, linear and cosine begin with the run, or when
    the warm-up is over, and end with the run; a cooldown takes the last fifth of the run. If the number of the run's
    steps is not known, what depends on it does not decay.

    With the unit `epoch`, t is counted from the beginning of the data's first epoch, and warmup_steps, decay_steps and
    boundaries are multiplied by the optimizer steps of an epoch. So a run that goes on with another batch size or
    number of workers has the rate of its place in the data.

    Attributes:
      name: of `SCHEDULES`.
      warmup_steps: units until the full rate is reached; 0 starts with it.
      decay_steps: units that the decay takes, of `exponential` and `step` those that one `decay_rate` takes; 0 for the
        run's, see above.
      decay_rate: of `exponential`, `step` and `plateau`; 0 where there is none.
      end: the lowest factor.
      patience: of `plateau`: how many evaluations without an improvement lower the rate once; 0 where there is none.
      unit: of `UNITS`: `step`, an optimizer step, of which there are only whole ones; or `epoch`.
      boundaries: of `piecewise`, ascending: the units after which the next factor counts.
      factors: of `piecewise`: one more than boundaries.

    Raises:
      UserError: settings that do not go together.

    Source: the cosine, Loshchilov and Hutter, SGDR, ICLR 2017, equation 5; the warm-up, Goyal et al., Accurate, Large
    Minibatch SGD, 2017, section 2.2; the stairs, He et al., Deep Residual Learning, CVPR 2016, section 3.4; the
    cooldown, Haegele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, NeurIPS 2024.
    """

    name: str = "constant"
    warmup_steps: float = 0
    decay_steps: float = 0
    decay_rate: float = 0.0
    end: float = 0.0
    patience: int = 0
    unit: str = "step"
    boundaries: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    def __post_init__(self):
        if self.name not in SCHEDULES:
            raise UserError(f"--lr_schedule={self.name}: choose one of {', '.join(SCHEDULES)}")
        for setting, flag in _FLAGS.items():
            if getattr(self, setting) and setting not in _SETTINGS[self.name]:
                users = [name for name in SCHEDULES if setting in _SETTINGS[name]]
                users = " and ".join(filter(None, (", ".join(users[:-1]), users[-1])))
                raise UserError(
                    f"{self._given(setting, flag)} is for --lr_schedule={users}, not {self.name}: leave it out"
                )
        self._refuse_missing()
        if not 0 <= self.end <= 1:
            raise UserError(f"--end_learning_rate={self.end:g} is a factor of the learning rate, from 0 to 1")
        self._refuse_units()

    def _refuse_missing(self):
        flag = f"--lr_schedule={self.name}"
        if self.name in ("exponential", "step") and not self.decay_steps:
            raise UserError(f"{flag} needs --decay_steps, the optimizer steps or epochs that one --decay_rate takes")
        if self.name in ("exponential", "step", "plateau") and not 0 < self.decay_rate < 1:
            raise UserError(f"{flag} needs a --decay_rate between 0 and 1, not {self.decay_rate:g}")
        if self.name == "plateau" and self.patience < 1:
            raise UserError(
                f"{flag} needs --plateau_patience, the evaluations without an improvement that it waits for"
            )
        if self.name == "piecewise":
            if not self.boundaries or len(self.factors) != len(self.boundaries) + 1:
                raise UserError(
                    f"{flag} needs --lr_boundaries and one more of --lr_factors, as --lr_boundaries=1000,2000 "
                    f"--lr_factors=1,0.1,0.01; there are {len(self.boundaries)} and {len(self.factors)}"
                )
            if list(self.boundaries) != sorted({b for b in self.boundaries if b > 0}):
                raise UserError(f"{self._given('boundaries', 'lr_boundaries')}: expected ascending numbers above 0")
            if not all(0 <= factor < math.inf for factor in self.factors):
                raise UserError(f"{self._given('factors', 'lr_factors')}: expected numbers of at least 0")

    def _refuse_units(self):
        if self.unit not in UNITS:
            raise UserError(f"--lr_unit={self.unit}: choose one of {', '.join(UNITS)}")
        counted = {
            "--warmup_steps": (self.warmup_steps,),
            "--decay_steps": (self.decay_steps,),
            "--lr_boundaries": self.boundaries,
        }
        if self.unit == "epoch" and not any(any(values) for values in counted.values()):
            raise UserError(f"--lr_unit=epoch is the unit of {', '.join(counted)}: give one of them, or leave it out")
        for flag, values in counted.items():
            for value in values:
                if not 0 <= value < math.inf:
                    raise UserError(f"{flag}={value:g} must be at least 0")
                if self.unit == "step" and value != int(value):
                    raise UserError(f"{flag}={value:g}: steps are whole; with --lr_unit=epoch it is in epochs")

    def _given(self, setting, flag):
        value = getattr(self, setting)
        return f"--{flag}={','.join(f'{v:g}' for v in value) if isinstance(value, tuple) else f'{value:g}'}"

    def factor(self, step, begin=0, end=None, epochs=None):
        """-> scalar float32 of the global step, an integer tensor or variable.

        Args:
          begin, end: the global steps that the run's schedule begins and ends at; end is None if it is not known.
          epochs: `StepsOfEpochs` of the run; None if they are not known.

        Raises:
          UserError: the unit is an epoch, and its steps are not known.
        """
        unit = self._unit(epochs)
        factor = tf.constant(1.0)
        if self.warmup_steps:
            done = tf.cast(step, tf.float32) + float(1.0 - unit.first)
            factor = tf.minimum(1.0, done / (self.warmup_steps * unit.steps))
        if self.name == "plateau":
            return factor * plateau.make(self.decay_rate, self.end, self.patience).factor
        if self.name == "piecewise":
            passed = [tf.cast(step, tf.int64) >= at for _, at in self.changes(epochs)]
            return factor * tf.gather(self.factors, tf.add_n([tf.cast(is_over, tf.int32) for is_over in passed]))
        first, steps = self.span(begin, end, epochs)
        if not steps:
            return factor
        x = tf.maximum(tf.cast(step, tf.float64) - first, 0.0) / steps
        if self.name == "step":
            x = tf.floor(x + _ROUNDING)
        x = tf.cast(x, tf.float32)
        if self.name in ("exponential", "step"):
            return factor * tf.maximum(self.decay_rate**x, self.end)
        x = tf.minimum(x, 1.0)
        left = (1.0 + tf.cos(math.pi * x)) / 2 if self.name == "cosine" else 1.0 - x
        return factor * (self.end + (1.0 - self.end) * left)

    def changes(self, epochs=None):
        """-> of `piecewise`, a list of (factor, the global step from which on it counts), after the first factor.

        Args:
          epochs: see `factor`.
        """
        unit = self._unit(epochs)
        steps = [math.ceil(unit.first + boundary * unit.steps - _ROUNDING) for boundary in self.boundaries]
        return list(zip(self.factors[1:], steps, strict=True))

    def span(self, begin, end, epochs=None):
        """-> (the global step that the decay begins at, the steps that it takes), the latter 0 without a decay.

        Args:
          begin, end, epochs: see `factor`.
        """
        if self.name in ("constant", "piecewise", "plateau") or (self.depends_on_end and end is None):
            return begin, 0
        unit = self._unit(epochs)
        if self.name == "cooldown":
            steps = self.decay_steps * unit.steps or cooldown_steps(end - begin, COOLDOWN_SHARE)
            return end - steps, steps
        warm = unit.first + self.warmup_steps * unit.steps
        if self.decay_steps:
            return warm, self.decay_steps * unit.steps
        first = max(begin, warm)
        return first, max(end - first, 1)

    def _unit(self, epochs):
        """-> `StepsOfEpochs` of the schedule's unit."""
        if self.unit == "step":
            return StepsOfEpochs()
        if epochs is None:
            raise UserError(
                "--lr_unit=epoch: the input does not say how many batches an epoch has, as a tf.data.Dataset: count in "
                "steps, --lr_unit=step"
            )
        return epochs

    @property
    def depends_on_end(self):
        """Whether the factor depends on the step that the run ends at."""
        return self.name == "cooldown" or (self.name in OF_THE_RUN and not self.decay_steps)
