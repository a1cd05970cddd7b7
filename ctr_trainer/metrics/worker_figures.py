"""What a worker says of itself beside a line of the training's log."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class WorkerFigures:
    """One worker's own figures as of a step; None for what there is none of.

    Attributes:
      lr: the dense variables' learning rate.
      sync_ms: milliseconds that the last sync of the rows took, where this worker makes those of its host.
      sync_wait_ms: for how many of them its steps stood still.
      hits, misses: keys looked up so far, see `RowTotals`; these add over workers.
    """

    lr: float | None = None
    sync_ms: float | None = None
    sync_wait_ms: float | None = None
    hits: int = 0
    misses: int = 0
