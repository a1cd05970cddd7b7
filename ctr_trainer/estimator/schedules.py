"""Learning rates that change with the step."""

import dataclasses
import math

import tensorflow as tf

from ctr_trainer.errors import UserError

SCHEDULES = ("constant", "linear", "cosine", "exponential")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a learning rate is multiplied by at optimizer step t, counted from 0: warm-up, then decay.

        factor(t) = min(1, (t + 1) / warmup_steps) * decay(max(t - warmup_steps, 0) / decay_steps)

        constant:     decay(x) = 1
        linear:       decay(x) = 1 - (1 - end) * min(x, 1)
        cosine:       decay(x) = end + (1 - end) * (1 + cos(pi * min(x, 1))) / 2
        exponential:  decay(x) = max(decay_rate ** x, end)

    Attributes:
      name: of `SCHEDULES`.
      warmup_steps: optimizer steps until the full rate is reached; 0 starts with it.
      decay_steps: of `linear` and `cosine`, from the warm-up's end to the lowest rate; of `exponential`, those that one
        `decay_rate` takes.
      decay_rate: of `exponential`; 0 where there is none.
      end: the lowest factor.

    Source: the cosine, Loshchilov and Hutter, SGDR, ICLR 2017, equation 5; the warm-up, Goyal et al., Accurate, Large
    Minibatch SGD, 2017, section 2.2.
    """

    name: str = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    decay_rate: float = 0.0
    end: float = 0.0

    def __post_init__(self):
        flag = f"--lr_schedule={self.name}"
        if self.name not in SCHEDULES:
            raise UserError(f"{flag}: choose one of {', '.join(SCHEDULES)}")
        if self.name == "constant" and (self.decay_steps or self.end):
            raise UserError(
                f"{flag} does not decay: leave out --decay_steps={self.decay_steps} and --end_learning_rate="
                f"{self.end:g}, or choose --lr_schedule=linear, cosine or exponential"
            )
        if self.name != "constant" and self.decay_steps < 1:
            raise UserError(f"{flag} needs --decay_steps, the optimizer steps that the decay takes")
        if self.name == "exponential" and not 0 < self.decay_rate < 1:
            raise UserError(f"{flag} needs a --decay_rate between 0 and 1, not {self.decay_rate:g}")
        if self.name != "exponential" and self.decay_rate:
            raise UserError(f"--decay_rate={self.decay_rate:g} is for --lr_schedule=exponential, not {self.name}")
        if not 0 <= self.end <= 1:
            raise UserError(f"--end_learning_rate={self.end:g} is a factor of the learning rate, from 0 to 1")

    def factor(self, step):
        """-> scalar float32 of the global step, an integer tensor or variable."""
        step = tf.cast(step, tf.float32)
        factor = tf.constant(1.0)
        if self.warmup_steps:
            factor = tf.minimum(1.0, (step + 1.0) / self.warmup_steps)
        if self.name == "constant":
            return factor
        x = tf.maximum(step - self.warmup_steps, 0.0) / self.decay_steps
        if self.name == "exponential":
            return factor * tf.maximum(self.decay_rate**x, self.end)
        x = tf.minimum(x, 1.0)
        left = 1.0 - x if self.name == "linear" else (1.0 + tf.cos(math.pi * x)) / 2
        return factor * (self.end + (1.0 - self.end) * left)
