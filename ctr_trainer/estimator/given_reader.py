"""Adapters of the reader that an `input_fn` returns."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ctr_trainer.data.batch import Batch
from ctr_trainer.features.columns import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.graph_notes.run_length import Epochs
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.measuring.phases import operation


class Reader(Protocol):
    """The attributes that every reader has."""

    @property
    def spec(self) -> FeatureSpec: ...

    @property
    def statistics(self) -> Statistics: ...

    @property
    def batch_size(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class GivenReader:
    """Wraps a reader, and supplies defaults for the optional attributes that it lacks.

    Args:
      reader: a `data.reader.BatchReader`, or another `Reader`. If its spec has quantiles, it also needs
        `with_statistics`, so that a model can be evaluated on data with statistics of their own.

    Attributes:
      spec, statistics, batch_size: the reader's.
      steps: number of batches from the reader's start to its end; None if unknown.
      steps_per_epoch: number of batches in a whole epoch; None if unknown.
      in_epochs: the epochs of the reader; None if unknown.
      epochs: the epoch before which the reader stops; None if unknown.
      is_live: whether examples arrive one by one, as in a stream.
      committed: f(position), called after a checkpoint with this position is complete.
      status_lines: f() -> list of f() -> a line for the log.
      stream_state: of a stream, f() -> {`event_seconds`: the newest event time in seconds since 1970, 0 before the
        first; `lag_records`: how many records wait}; None otherwise.
      read_latency: OpsReadSample, the time that the reader took for each batch.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader: Any = reader  # Its optional attributes are not in the Protocol.
        self.spec, self.statistics, self.batch_size = reader.spec, reader.statistics, reader.batch_size
        self.steps: int | None = getattr(reader, "steps", None)
        self.epochs: int | None = getattr(reader, "epochs", None)
        self.steps_per_epoch: int | None = getattr(reader, "steps_per_epoch", None)
        before, rows = getattr(reader, "steps_before", None), getattr(reader, "rows", None)
        self.in_epochs: Epochs | None = None
        if self.steps_per_epoch is not None and before is not None:
            self.in_epochs = Epochs(self.steps_per_epoch, before, rows)
        self.is_live: bool = getattr(reader, "is_live", False)
        self._position_after = getattr(reader, "position_after", lambda steps: None)
        self.committed: Callable[[Any], None] = getattr(reader, "committed", lambda position: None)
        self.status_lines: Callable[[], Sequence[Callable[[], str]]] = getattr(reader, "status_lines", list)
        self.stream_state: Callable[[], dict[str, float]] | None = getattr(reader, "stream_state", None)
        self.read_latency = Latency(operation("read"))

    def with_statistics(self, statistics: Statistics) -> "GivenReader":
        """Returns the reader with the statistics of the training data, which define a model's quantiles."""
        return GivenReader(self._reader.with_statistics(statistics))

    def position_after(self, steps: int) -> dict[str, Any] | None:
        """Returns the position after every worker read `steps` batches since the reader's start; None if unknown."""
        return self._position_after(steps)

    def __iter__(self) -> Iterator[Batch]:
        return self.read_latency.each(self._reader)


class WholeSteps:
    """The batches of a reader, followed by zero-weight batches that complete the last optimizer step.

    So the last examples are trained on although they do not fill a step. All ranks have the same number of batches, so
    all add the same number. The added batches repeat the last batch: they look up no other row.

    Args:
      batches: the reader's batches.
      batches_per_step: number of batches in an optimizer step.
    """

    def __init__(self, batches: Iterable[Batch], batches_per_step: int) -> None:
        self._batches, self._per_step = batches, batches_per_step
        self._count: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        count = 0
        for last in self._batches:
            count += 1
            yield last
        self._count = count
        for _ in range(-count % self._per_step):  # Not empty only if there was a last batch.
            yield dataclasses.replace(last, size=0, weights=np.zeros_like(last.weights))

    def taken_by(self, steps: int) -> int:
        """Returns the number of the reader's own batches in the first `steps` steps."""
        batches = steps * self._per_step
        return batches if self._count is None else min(batches, self._count)
