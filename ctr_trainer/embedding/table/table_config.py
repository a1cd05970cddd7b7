"""The configuration of a table: the layout of its rows, their optimizer, and the limits on rows."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.embedding.table.row_form import DTYPES, RowForm, row_form
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS, RowAdagrad, RowOptimizer

EVICTIONS = ("lru", "lfu")
MOST_FREQUENCY = 255
# The fields that limit which keys have rows. A table keeps its rows if one of them changes.
LIMITS = ("min_frequency", "max_rows", "eviction", "ttl_steps")


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """The layout, the update rule and the limits of one table's rows.

    A row is `[weights of segment 0, weights of segment 1, ..., state of segment 0, state of segment 1, ...]`,
    contiguous float32; `form` is how it is stored. The segments let one lookup serve an embedding and a linear weight:
    `dims=(16, 1)`. `sparse_optimizers` lists the state that each optimizer keeps for a segment, in order.

    Attributes:
      name: name of the table, unique in a job, for example `dim16`.
      dims: width of each segment.
      init_scales: for each segment, the half-width of the uniform distribution of new weights; 0 for zeros.
      optimizer: a `RowOptimizer` or its name. A restore may change its settings, which do not affect the layout of a
        row, but not `initial_accumulator`, the initial value of the sum of squares.
      seed: int; the weights of a new row are a pure function of (seed, key).
      min_frequency: how often a key must come before it gets a row, counted in batches of a single worker, or in pushes
        to a service (one per worker and sync window). With 0 or 1 a key gets its row at once. See `Admission`.
      max_rows: the maximum number of rows of this table over all shards of a service, see `most_rows`; 0 for as many as
        fit into memory.
      eviction: the rows that are evicted when `max_rows` is reached: `lru`, the least recently trained rows, or `lfu`,
        the least frequently trained rows.
      ttl_steps: a row that was not trained for more than this number of global steps is evicted at the next sync; 0 for
        never.
      row_dtype: how the weights are stored and sent, see `row_form`. A restore may change it.

    Caveat: a key without a row reads its initial row, and its updates are lost. A key that returns after its row was
    evicted is a new key.

    Raises ValueError: a field has an invalid value; the message names the table and the field.
    """

    name: str
    dims: tuple[int, ...]
    init_scales: tuple[float, ...]
    optimizer: RowOptimizer = RowAdagrad()
    seed: int = 0
    min_frequency: int = 0
    max_rows: int = 0
    eviction: str = "lru"
    ttl_steps: int = 0
    row_dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(self.dims))
        object.__setattr__(self, "init_scales", tuple(self.init_scales))
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", _named(self.optimizer, f"table {self.name}"))
        if not self.dims or min(self.dims) < 1 or len(self.dims) != len(self.init_scales):
            raise ValueError(
                f"table {self.name}: dims {self.dims} and init_scales {self.init_scales} do not fit: give each segment "
                "a width of at least 1 and one scale"
            )
        if self.row_dtype not in DTYPES:
            raise ValueError(f"table {self.name}: row_dtype {self.row_dtype!r} is not one of {', '.join(DTYPES)}")
        if self.eviction not in EVICTIONS:
            raise ValueError(f"table {self.name}: eviction {self.eviction!r} is not one of {', '.join(EVICTIONS)}")
        if not 0 <= self.min_frequency <= MOST_FREQUENCY or self.max_rows < 0 or self.ttl_steps < 0:
            raise ValueError(
                f"table {self.name}: min_frequency {self.min_frequency}, max_rows {self.max_rows} and ttl_steps "
                f"{self.ttl_steps}: none may be negative, and min_frequency not above {MOST_FREQUENCY}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableConfig":
        """Returns the TableConfig of a dictionary that `to_dict` wrote.

        Raises:
          KeyError, ValueError, TypeError, UserError: the values are not those of a TableConfig.
        """
        values = dict(values)
        kind = type(_named(values.pop("optimizer"), "optimizer"))
        optimizer = kind(**values.pop("settings"))
        return cls(**values, optimizer=optimizer)

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "optimizer": self.optimizer.name, "settings": dataclasses.asdict(self.optimizer)}

    def differs(self, other: "TableConfig", but: Sequence[str] = ()) -> tuple[str, Any, Any] | None:
        """Returns (field, own value, other's value) of the first field that differs, or None.

        Args:
          but: fields that may differ; "settings" stands for the optimizer's settings except `initial_accumulator`.
        """
        own, others = ({**each, **each.pop("settings")} for each in (self.to_dict(), other.to_dict()))
        if "settings" in but:
            but = (*but, *(name for name in dataclasses.asdict(self.optimizer) if name != "initial_accumulator"))
        differing = (name for name in own if name not in but and own[name] != others.get(name))
        return next(((name, own[name], others.get(name)) for name in differing), None)

    @property
    def evicts(self) -> bool:
        return bool(self.max_rows or self.ttl_steps)

    @functools.cached_property
    def has_limits(self) -> bool:
        """Whether limits decide which keys have rows; else every key gets a row."""
        return self != self.without_limits()

    def most_rows(self, shard: int, shards: int) -> int:
        """Returns the maximum number of rows of a shard: its even share of `max_rows`, at least 1; 0 for no limit.

        Keys are distributed over the shards by hash. So a full table may have slightly fewer rows than `max_rows`: a
        shard may have fewer keys than its share of rows.
        """
        return max(self.max_rows // shards + (shard < self.max_rows % shards), 1) if self.max_rows else 0

    def without_limits(self) -> "TableConfig":
        """Returns the same configuration without limits: every key gets a row."""
        limits: dict[str, Any] = {
            field.name: field.default for field in dataclasses.fields(self) if field.name in LIMITS
        }
        return dataclasses.replace(self, **limits)

    @property
    def weights(self) -> int:
        """The number of floats of a row that the model reads."""
        return sum(self.dims)

    @property
    def state(self) -> int:
        """The number of floats of a row that are optimizer state."""
        return sum(map(OPTIMIZERS[self.optimizer.name].width, self.dims))

    @functools.cached_property
    def width(self) -> int:
        """The number of floats of a row."""
        return self.weights + self.state

    @functools.cached_property
    def form(self) -> RowForm:
        """The form in which rows are stored and sent."""
        optimizer = OPTIMIZERS[self.optimizer.name]
        has_fine = optimizer.states and optimizer.states[0].each_weight
        return row_form(
            self.dims,
            self.state,
            self.row_dtype,
            tuple(state for _, state in optimizer.segments(self.dims)) if has_fine else (),
        )


def _named(name: str, where: str) -> RowOptimizer:
    if name in ROW_OPTIMIZERS:
        return ROW_OPTIMIZERS[name]()
    raise ValueError(f"{where}: optimizer {name!r} is not one of {', '.join(ROW_OPTIMIZERS)}")
