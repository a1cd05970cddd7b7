"""What a table holds."""

import dataclasses
import functools

from ctr_trainer.embedding.table.sparse_optimizers import OptimizerSettings, find_optimizer

EVICTIONS = ("lru", "lfu")
MOST_FREQUENCY = 255
# The fields that say which keys have rows: a table keeps its rows where these change.
LIMITS = ("min_frequency", "max_rows", "eviction", "ttl_steps")


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """The layout and the update rule of one table's rows.

    A row is `[weights of segment 0, weights of segment 1, ..., state of segment 0, state of segment 1, ...]`,
    contiguous float32. The segments let one lookup serve an embedding and a linear weight: `dims=(16, 1)`. The state
    of a segment of `dim` weights, see `optimizer_kernels` for what the letters mean:

    | optimizer | state |
    |---|---|
    | `sgd` | none |
    | `momentum` | u[dim] |
    | `adagrad` | acc[dim] |
    | `rowwise_adagrad` | acc[1] |
    | `adam`, `adamw` | m[dim], v[dim], c1[1], c2[1] |
    | `ftrl` | q[dim], n[dim] |

    Attributes:
      name: unique in a job, as `dim16`.
      dims: width of each segment.
      init_scales: by segment, the half width of the uniform distribution new weights are drawn from; 0 for zeros.
      optimizer: of `sparse_optimizers.OPTIMIZERS`.
      initial_accumulator: what the sum of squares starts at, `acc` of the two Adagrads and `n` of FTRL.
      seed: a new row's weights are a pure function of (seed, key).
      min_frequency: how often a key must have been asked for before it gets a row: in how many batches of a lone
        worker, or pushes to a service (one a worker and sync window). 0 and 1 give one at once. See `admission`.
      max_rows: rows of this table in all shards of a service together, see `most_rows`; 0 for as many as fit into
        memory.
      eviction: which rows go where `max_rows` is reached: `lru`, those whose last training is the longest ago, or
        `lfu`, those trained the least often.
      ttl_steps: a row that was not trained for more steps than this goes at the next sync; 0 for never.
      settings: of the optimizer. They may be others after a restore: they do not say what a row is.

    Caveat: a key that has no row reads its initial row, and what it learns is not kept. A key that comes back after its
    row went is a new key.
    """

    name: str
    dims: tuple[int, ...]
    init_scales: tuple[float, ...]
    optimizer: str = "adagrad"
    initial_accumulator: float = 1e-4
    seed: int = 0
    min_frequency: int = 0
    max_rows: int = 0
    eviction: str = "lru"
    ttl_steps: int = 0
    settings: OptimizerSettings = OptimizerSettings()

    def __post_init__(self):
        object.__setattr__(self, "dims", tuple(self.dims))
        object.__setattr__(self, "init_scales", tuple(self.init_scales))
        try:
            object.__setattr__(self, "settings", OptimizerSettings.of(self.settings))
            find_optimizer(self.optimizer).check(self.optimizer, self.settings)
        except ValueError as error:
            raise ValueError(f"table {self.name}: {error}") from None
        if not self.dims or min(self.dims) < 1 or len(self.dims) != len(self.init_scales):
            raise ValueError(f"table {self.name}: dims {self.dims} and init_scales {self.init_scales} do not fit")
        if self.eviction not in EVICTIONS:
            raise ValueError(f"table {self.name}: eviction {self.eviction!r} is not one of {', '.join(EVICTIONS)}")
        if not 0 <= self.min_frequency <= MOST_FREQUENCY or self.max_rows < 0 or self.ttl_steps < 0:
            raise ValueError(
                f"table {self.name}: min_frequency {self.min_frequency}, max_rows {self.max_rows} and ttl_steps "
                f"{self.ttl_steps}: none may be negative, and min_frequency not above {MOST_FREQUENCY}"
            )

    def differs(self, other, but=()):
        """-> (field, own value, other's value) of the first field that differs, those in `but` aside, or None."""
        own, others = ({**each, **each.pop("settings")} for each in map(dataclasses.asdict, (self, other)))
        if "settings" in but:
            but = (*but, *dataclasses.asdict(self.settings))
        differing = (name for name in own if name not in but and own[name] != others[name])
        return next(((name, own[name], others[name]) for name in differing), None)

    @property
    def evicts(self):
        """Whether rows may go."""
        return bool(self.max_rows or self.ttl_steps)

    def most_rows(self, shard, shards):
        """-> how many rows a shard may have, its even share of `max_rows`, at least 1; 0 for no limit.

        Keys are spread over the shards by hash, so a full table has a few rows less than `max_rows` at most: what the
        shards with fewer keys than their share leave free.
        """
        return max(self.max_rows // shards + (shard < self.max_rows % shards), 1) if self.max_rows else 0

    def without_limits(self):
        """-> this configuration, with a row for every key."""
        limits = {field.name: field.default for field in dataclasses.fields(self) if field.name in LIMITS}
        return dataclasses.replace(self, **limits)

    @property
    def weights(self):
        """Floats of a row that the model reads."""
        return sum(self.dims)

    @property
    def state(self):
        """Floats of a row that belong to the optimizer."""
        return sum(map(find_optimizer(self.optimizer).width, self.dims))

    @functools.cached_property
    def width(self):
        """Floats of a row."""
        return self.weights + self.state
