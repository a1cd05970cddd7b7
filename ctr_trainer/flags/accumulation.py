"""Flags of `bench accumulation`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class AccumulationFlags(Settings, title="Bench accumulation"):
    """Bench accumulation."""

    equal: tuple[str, ...] = setting(
        ("examples",),
        "what the runs of all --accumulation_steps have as many of: examples, steps of the optimizer, or "
        "examples,steps for both in turn, which tells the loss by fewer steps from that by larger batches",
        "name",
    )
    evaluations: int = setting(
        5,
        "evaluations of each run on --eval_data, evenly spaced; the last one is at the end of the run",
        "times",
        minimum=1,
    )
