"""What a table holds."""

import dataclasses

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """The layout and the update rule of one table's rows.

    A row is `[weights of segment 0, weights of segment 1, ..., optimizer state]`, contiguous float32. The segments
    let one lookup serve an embedding and a linear weight: `dims=(16, 1)`.

    Attributes:
      name: unique in a job, as `dim16`.
      dims: width of each segment.
      init_scales: by segment, the half width of the uniform distribution new weights are drawn from; 0 for zeros.
      optimizer: `sgd`, `adagrad` (a state float a weight) or `rowwise_adagrad` (a state float a segment).
      initial_accumulator: what Adagrad's state starts at.
      seed: a new row's weights are a pure function of (seed, key).
    """

    name: str
    dims: tuple[int, ...]
    init_scales: tuple[float, ...]
    optimizer: str = "adagrad"
    initial_accumulator: float = 1e-4
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "dims", tuple(self.dims))
        object.__setattr__(self, "init_scales", tuple(self.init_scales))
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"table {self.name}: optimizer {self.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
        if not self.dims or min(self.dims) < 1 or len(self.dims) != len(self.init_scales):
            raise ValueError(f"table {self.name}: dims {self.dims} and init_scales {self.init_scales} do not fit")

    @property
    def weights(self):
        """Floats of a row that the model reads."""
        return sum(self.dims)

    @property
    def state(self):
        """Floats of a row that belong to the optimizer."""
        return {"sgd": 0, "adagrad": self.weights, "rowwise_adagrad": len(self.dims)}[self.optimizer]

    @property
    def width(self):
        """Floats of a row."""
        return self.weights + self.state
