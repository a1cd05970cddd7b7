"""The ways in which workers/summed_rows.py trains."""

import dataclasses
from typing import Any

from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS


@dataclasses.dataclass(frozen=True)
class Way:
    optimizer: str
    service: str = "auto"
    l2: float = 0.0
    clip_norm: float = 0.0
    steps: int = 6
    sync_steps: int = 2
    row_copies: str = "host"
    is_weighed: bool = True
    batch_norm: bool = False
    model: str = "deepfm"
    is_frozen: bool = False  # Whether the rows of items keep the vectors that they begin with.
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


_LAZY = [name for name, kind in ROW_OPTIMIZERS.items() if not kind.moves_all_rows]
WAYS = {
    **{name: Way(name) for name in _LAZY},
    **{name: Way(name, "shared", l2=0.01) for name in ROW_OPTIMIZERS if name not in _LAZY},
    "shared": Way("adagrad", "shared"),
    "l2": Way("adagrad", l2=0.01),
    "clipped": Way("sgd", clip_norm=0.01),
    "accumulated": Way("adagrad", settings={"accumulation_steps": 2}),
    "own_copies": Way("sgd", sync_steps=1, row_copies="worker", is_weighed=False),
    "frozen": Way("adamw", l2=0.01, clip_norm=0.01, is_frozen=True),
    "frozen_shared": Way("ftrl", "shared", is_frozen=True),
}
# Workers whose layers keep batch statistics of their own batches, with which no lone worker has the same steps.
_OWN = dict(optimizer="sgd", sync_steps=1, row_copies="worker", is_weighed=False, steps=10)
NORMED = {
    "batch_norm": Way(**_OWN, batch_norm=True),
    "local": Way(**_OWN, batch_norm=True, settings={"dense_sync_steps": 4}),
    "dice": Way(**_OWN, model="din"),
}
# Workers of several hosts sync after each step.
OF_HOSTS = {"of_hosts": Way("sgd", sync_steps=1)}
