"""Flags of `bench accumulation`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class AccumulationFlags:
    """Bench accumulation"""

    equal: tuple[str, ...] = flag(
        ("examples",),
        "what the runs of all --accumulation_steps have as many of: examples, steps of the optimizer, or "
        "examples,steps for both in turn, which tells the loss by fewer steps from that by larger batches",
        "name",
    )
    evaluations: int = flag(
        5,
        "evaluations of each run on --eval_data, evenly spaced; the last one is at the end of the run",
        "times",
        minimum=1,
    )
