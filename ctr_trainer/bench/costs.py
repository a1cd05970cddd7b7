"""What a training step is made of, as `bench simulate` measures it and computes with it."""

import dataclasses
import json
import math

from ctr_trainer.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs. Seconds are CPU seconds of one core that nobody else wants, where nothing else is said.

    Attributes:
      batch_size: examples of a step.
      step_seconds: the dense graph of one step: forward, backward, update.
      host_seconds: the rest of a step of a lone worker: reading, lookup, gathering, the rows' update.
      deviation_seconds: the standard deviation of a step of a lone worker, wall.
      lock_seconds: of `host_seconds`, for how long a worker holds the lock of rows that it shares.
      crowding: by how much the same work takes longer on a core while all `cores` are busy; at least 1.
      sharing: by how much the same work takes longer where two workers take turns on a core; at least 1.
      cores: of the machine that was measured.
      rows: distinct rows that a batch looks up.
      growth: h of D(n) = rows n^h, the distinct rows of n batches (Heaps' law); 0 to 1.
      row_bytes: of a row's weights and its optimizer's state.
      push_seconds: of the worker, for a row in a sync.
      request_seconds: of the worker, for a request to a shard.
      shard_push_seconds, shard_pull_seconds: of the service, for a row that is synced, and for one that is pulled.
      shard_request_seconds: of a shard, for a request.
      dense_bytes: of a step's dense gradient.
      state_bytes: of the dense variables with their optimizer's state: what `--dense_sync_steps` averages.
      hop_seconds: wall; an allreduce of next to nothing over W workers takes 2 (W - 1) of them.
      crowded_hop_seconds: wall; the same with twice as many workers as cores.
      link_bytes_per_sec: that a worker sends to another of its machine in an allreduce.
      exchange_seconds: CPU of a worker for an allreduce of `dense_bytes`, wherever it is sent.
      meeting_seconds: wall; a sum of next to nothing in the memory that the workers of a machine share.
      crowded_meeting_seconds: wall; the same with twice as many workers as cores.
      memory_bytes_per_sec: of such a sum of many: a worker's own bytes a second, wall and CPU.
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

    def distinct(self, batches):
        """-> distinct rows of so many batches, D(n) = rows n^h; 0 for none."""
        return self.rows * batches**self.growth if batches > 0 else 0.0

    def to_dict(self):
        """-> the attributes, JSON-able."""
        return dataclasses.asdict(self)


# What must be above 0, as it is divided by or is no step without it; all else may be 0.
_POSITIVE = ("batch_size", "step_seconds", "cores", "rows", "link_bytes_per_sec", "memory_bytes_per_sec")


def read_costs(path):
    """-> the Costs in a JSON file: those of the key `costs`, as `bench simulate` writes it, or of the file itself.

    Raises:
      UserError: no such file, no JSON, or a cost that is missing, unknown or no sensible number.
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
        least, is_number = _least(name), isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < least or (name in _POSITIVE and value == 0):
            above = "above 0" if name in _POSITIVE else f"at least {least}"
            raise UserError(f"--costs={path}: {name} is {value!r}, expected a number {above}")
    if found["growth"] > 1:
        raise UserError(f"--costs={path}: growth is {found['growth']}, but n batches have at most n times one's rows")
    return Costs(**found)


def _least(name):
    return 1 if name in ("crowding", "sharing") else 0
