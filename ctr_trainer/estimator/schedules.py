"""Learning rates that change with the step."""

import dataclasses
import math

import tensorflow as tf

from ctr_trainer.errors import UserError
from ctr_trainer.estimator import plateau

SCHEDULES = ("constant", "linear", "cosine", "exponential", "cooldown", "plateau")
# Those whose length is the run's where `decay_steps` is 0.
OF_THE_RUN = ("linear", "cosine", "cooldown")
COOLDOWN_SHARE = 0.2  # Of the run's steps.


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
        cooldown:     as linear
        plateau:      max(decay_rate ** falls, end), see `plateau`

    With `decay_steps`, the decay begins when the warm-up is over (first = warmup_steps) and takes decay_steps; a
    cooldown takes the last decay_steps of the run. Without `decay_steps`, linear and cosine begin with the run, or when
    the warm-up is over, and end with the run; a cooldown takes the last fifth of the run. If the number of the run's
    steps is not known, what depends on it does not decay.

    Attributes:
      name: of `SCHEDULES`.
      warmup_steps: optimizer steps until the full rate is reached; 0 starts with it.
      decay_steps: optimizer steps that the decay takes, of `exponential` those that one `decay_rate` takes; 0 for the
        run's, see above.
      decay_rate: of `exponential` and `plateau`; 0 where there is none.
      end: the lowest factor.
      patience: of `plateau`: how many evaluations without an improvement lower the rate once; 0 where there is none.

    Raises:
      UserError: settings that do not go together.

    Source: the cosine, Loshchilov and Hutter, SGDR, ICLR 2017, equation 5; the warm-up, Goyal et al., Accurate, Large
    Minibatch SGD, 2017, section 2.2; the cooldown, Haegele et al., Scaling Laws and Compute-Optimal Training Beyond
    Fixed Training Durations, NeurIPS 2024.
    """

    name: str = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    decay_rate: float = 0.0
    end: float = 0.0
    patience: int = 0

    def __post_init__(self):
        flag = f"--lr_schedule={self.name}"
        if self.name not in SCHEDULES:
            raise UserError(f"{flag}: choose one of {', '.join(SCHEDULES)}")
        if self.name == "constant" and (self.decay_steps or self.end):
            raise UserError(
                f"{flag} does not decay: leave out --decay_steps={self.decay_steps} and --end_learning_rate="
                f"{self.end:g}, or choose --lr_schedule=linear, cosine, exponential or cooldown"
            )
        if self.name == "exponential" and self.decay_steps < 1:
            raise UserError(f"{flag} needs --decay_steps, the optimizer steps that one --decay_rate takes")
        if self.name == "plateau" and self.decay_steps:
            raise UserError(
                f"{flag} falls when evaluations do not improve, not by steps: leave out --decay_steps="
                f"{self.decay_steps}"
            )
        if self.name in ("exponential", "plateau") and not 0 < self.decay_rate < 1:
            raise UserError(f"{flag} needs a --decay_rate between 0 and 1, not {self.decay_rate:g}")
        if self.name not in ("exponential", "plateau") and self.decay_rate:
            raise UserError(
                f"--decay_rate={self.decay_rate:g} is for --lr_schedule=exponential and plateau, not {self.name}"
            )
        if self.name == "plateau" and self.patience < 1:
            raise UserError(
                f"{flag} needs --plateau_patience, the evaluations without an improvement that it waits for"
            )
        if self.name != "plateau" and self.patience:
            raise UserError(f"--plateau_patience={self.patience} is for --lr_schedule=plateau, not {self.name}")
        if not 0 <= self.end <= 1:
            raise UserError(f"--end_learning_rate={self.end:g} is a factor of the learning rate, from 0 to 1")

    def factor(self, step, begin=0, end=None):
        """-> scalar float32 of the global step, an integer tensor or variable.

        Args:
          begin, end: the global steps that the run's schedule begins and ends at; end is None if it is not known.
        """
        step = tf.cast(step, tf.float32)
        factor = tf.constant(1.0)
        if self.warmup_steps:
            factor = tf.minimum(1.0, (step + 1.0) / self.warmup_steps)
        if self.name == "plateau":
            return factor * plateau.make(self.decay_rate, self.end, self.patience).factor
        first, steps = self.span(begin, end)
        if not steps:
            return factor
        x = tf.maximum(step - first, 0.0) / steps
        if self.name == "exponential":
            return factor * tf.maximum(self.decay_rate**x, self.end)
        x = tf.minimum(x, 1.0)
        left = (1.0 + tf.cos(math.pi * x)) / 2 if self.name == "cosine" else 1.0 - x
        return factor * (self.end + (1.0 - self.end) * left)

    def span(self, begin, end):
        """-> (the global step that the decay begins at, the steps that it takes), the latter 0 without a decay.

        Args:
          begin, end: see `factor`.
        """
        if self.name in ("constant", "plateau") or (self.depends_on_end and end is None):
            return begin, 0
        if self.name == "cooldown":
            steps = self.decay_steps or cooldown_steps(end - begin, COOLDOWN_SHARE)
            return end - steps, steps
        if self.decay_steps:
            return self.warmup_steps, self.decay_steps
        first = max(begin, self.warmup_steps)
        return first, max(end - first, 1)

    @property
    def depends_on_end(self):
        """Whether the factor depends on the step that the run ends at."""
        return self.name == "cooldown" or (self.name in OF_THE_RUN and not self.decay_steps)
