"""Figures of one worker that stand beside a line of the training's log."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class WorkerFigures:
    """One worker's own figures at a step; a figure that the worker does not have is None.

    Attributes:
      lr: learning rate of the dense variables.
      sync_ms: duration of the last sync of the rows, in milliseconds; None if another worker of the host makes the
        syncs.
      sync_wait_ms: milliseconds of that sync for which the worker's steps stood still.
      hits, misses: number of keys looked up so far, see `RowTotals`; they add up over workers.
      steps_per_sec, examples_per_sec: rates of this worker since the previous line.
    """

    lr: float | None = None
    sync_ms: float | None = None
    sync_wait_ms: float | None = None
    hits: int = 0
    misses: int = 0
    steps_per_sec: float | None = None
    examples_per_sec: float | None = None
