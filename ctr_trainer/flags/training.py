"""Flags of the training of the dense variables."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
    """Training"""

    max_steps: int = flag(0, "global step to stop at; 0 goes on until --epochs are over", "steps", minimum=0)
    optimizer: str = flag("adagrad", "of the dense variables", choices=("sgd", "adagrad", "adam"))
    learning_rate: float = flag(0.02, "of the dense variables, for one worker", "1/step", minimum=0.0)
    scale_lr: str = flag("linear", "how learning rates grow with the workers", choices=("linear", "sqrt", "none"))
    fp16_allreduce: bool = flag(False, "send dense gradients as float16")
    seed: int = flag(1, "of the data's order, the dense variables and new embedding rows", minimum=0)
