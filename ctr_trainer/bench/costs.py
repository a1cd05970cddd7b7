"""The costs of the parts of a training step, which `bench simulate` measures and computes with."""

import dataclasses
import json
import math
import os
from typing import Any

from ctr_trainer.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs. Unless stated otherwise, seconds are CPU seconds of a core that runs nothing else.

    Attributes:
      batch_size: examples of a step.
      step_seconds: the dense graph of one step: forward, backward, update.
      host_seconds: the rest of a step of a lone worker: reading, lookup, gathering and the update of the rows.
      deviation_seconds: the standard deviation of the wall time of a lone worker's step.
      lock_seconds: the part of `host_seconds` in which a worker holds the lock of shared rows.
      crowding: the slowdown of a core while all `cores` are busy; at least 1.
      sharing: the slowdown of two workers that take turns on a core, beyond the time of both; at least 1.
      cores: number of cores of the machine that was measured.
      rows: distinct rows that a batch looks up.
      growth: h of D(n) = rows n^h, the distinct rows of n batches (Heaps' law); 0 to 1.
      row_bytes: bytes of a row's weights and of its optimizer state.
      push_seconds: time of the worker for one row of a sync.
      request_seconds: time of the worker for one request to a shard.
      shard_push_seconds: time of the service for one row that is synced.
      shard_pull_seconds: time of the service for one row that is pulled.
      shard_request_seconds: time of a shard for one request.
      dense_bytes: bytes of the dense gradient of a step.
      state_bytes: bytes of the dense variables and their optimizer state, which `--dense_sync_steps` averages.
      hop_seconds: wall time; an allreduce of one float between W workers takes 2 (W - 1) hops.
      crowded_hop_seconds: wall time of a hop with twice as many workers as cores.
      link_bytes_per_sec: speed at which a worker sends to another worker of its machine in an allreduce.
      exchange_seconds: CPU time of a worker for an allreduce of `dense_bytes`, between any machines.
      meeting_seconds: wall time of a sum of one float in the memory that the workers of a machine share.
      crowded_meeting_seconds: wall time of such a sum with twice as many workers as cores.
      memory_bytes_per_sec: speed of such a sum of many floats: bytes of one worker per second, wall and CPU.
    """

    batch_size: int
    step_seconds: float
    host_seconds: float
    deviation_seconds: float
    lock_seconds: float
    crowding: float
    sharing: float
    cores: int
    rows: float
    growth: float
    row_bytes: int
    push_seconds: float
    request_seconds: float
    shard_push_seconds: float
    shard_pull_seconds: float
    shard_request_seconds: float
    dense_bytes: int
    state_bytes: int
    hop_seconds: float
    crowded_hop_seconds: float
    link_bytes_per_sec: float
    exchange_seconds: float
    meeting_seconds: float
    crowded_meeting_seconds: float
    memory_bytes_per_sec: float

    def distinct(self, batches: float) -> float:
        """Returns D(n) = rows n^h, the distinct rows of n batches; 0 if n is not positive."""
        return self.rows * batches**self.growth if batches > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes, for JSON."""
        return dataclasses.asdict(self)


# These costs must be above 0; all others may be 0.
_POSITIVE = ("batch_size", "step_seconds", "cores", "rows", "link_bytes_per_sec", "memory_bytes_per_sec")


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Reads costs from a JSON file. They are under the key `costs`, as `bench simulate` writes them, or at the top.

    Raises:
      UserError: there is no such file, it is no JSON, or a cost is missing, unknown or not a valid number.
    """
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise UserError(f"--costs={path}: {error}; `bench simulate` without --costs measures and writes one") from None
    if isinstance(found, dict) and isinstance(found.get("costs"), dict):
        found = found["costs"]
    if not isinstance(found, dict):
        raise UserError(f"--costs={path}: expected one JSON object, not {type(found).__name__}")
    names = [field.name for field in dataclasses.fields(Costs)]
    for what, wrong in (
        ("lacks", [name for name in names if name not in found]),
        ("has the unknown", [name for name in found if name not in names]),
    ):
        if wrong:
            raise UserError(f"--costs={path} {what} {', '.join(wrong)}; the costs are {', '.join(names)}")
    for name, value in found.items():
        least = 1 if name in ("crowding", "sharing") else 0
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < least or (name in _POSITIVE and value == 0):
            above = "above 0" if name in _POSITIVE else f"at least {least}"
            raise UserError(f"--costs={path}: {name} is {value!r}, expected a number {above}")
    if found["growth"] > 1:
        raise UserError(f"--costs={path}: growth is {found['growth']}, but n batches have at most n times one's rows")
    return Costs(**found)
