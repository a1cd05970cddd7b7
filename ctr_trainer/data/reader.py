"""Batches of a data set in shuffled order. Any number of workers share the order, and a later run can resume in it."""

import copy
import os
from collections.abc import Iterator
from typing import Any

from ctr_trainer.data import row_order
from ctr_trainer.data.batch import Batch, batches
from ctr_trainer.data.dataset import DatasetInfo, open_dataset
from ctr_trainer.data.read_ahead import OrderedMap
from ctr_trainer.data.row_groups import PieceReader, Place, RowGroups, places
from ctr_trainer.data.row_order import Position
from ctr_trainer.data.source import Source, source_of
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

__all__ = ["BatchReader", "DatasetInfo", "open_dataset"]


class BatchReader:
    """One worker's batches. In each epoch each row of the data set is in a batch of exactly one worker.

    Every worker makes the same number of batches, and each batch has exactly `batch_size` rows. A worker whose share of
    the data ends early adds padding: rows with weight, keys, label and dense values 0 and empty bags, up to whole
    batches of them. The reader reads the next buffers while it cuts batches from the current one. Up to
    `num_readers` + 2 buffers are in memory, each of about `shuffle_buffer` rows.

    Caveat: a batch's arrays are views of the buffer; do not write to them.

    Args:
      data: the path of a data set that `convert` made, or another `Source`.
      batch_size: rows per batch.
      rank, size: rank of this worker, and number of workers.
      shuffle: whether to shuffle the rows; False keeps the order of the files.
      seed: seed of the shuffling.
      epochs: number of the epoch to stop before, counted from the beginning of the training; None for no end.
      position: what `position_after` returned for the same data, seed and shuffling; `size` and `batch_size` may
        differ.
      shuffle_buffer: approximate number of rows that are shuffled together.
      dim: width of every sparse feature's embedding, in place of the spec's; None keeps the spec's.
      labels: whether the batches need labels. False is for prediction: labels that the data lacks are NaN.
      num_readers: threads that read buffers ahead, one buffer each. The batches do not depend on it.

    Attributes:
      epochs: number of the epoch to stop before; None for no end.

    Raises:
      UserError: the data set does not exist, is empty, or lacks the labels that are needed; or the position belongs to
        another order of the rows.
    """

    def __init__(
        self,
        data: str | os.PathLike | Source,
        batch_size: int,
        rank: int = 0,
        size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        epochs: int | None = None,
        position: dict[str, Any] | None = None,
        shuffle_buffer: int = 200_000,
        dim: int | None = None,
        labels: bool = True,
        num_readers: int = 1,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch size {batch_size} is not at least 1")
        if num_readers < 1:
            raise UserError(f"num_readers={num_readers} is not at least 1")
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not one of {size} workers'")
        self._source = source_of(data)
        self._spec = self._source.spec.with_dim(dim) if dim else self._source.spec
        if not sum(self._source.group_rows):
            raise UserError(f"data set {self._source.name}: it has no rows")
        if labels and not self._source.spec.labelled:
            raise UserError(
                f"data set {self._source.name}: it was converted without labels, and only `predict` "
                "takes such data; to train or evaluate, convert labelled data"
            )
        self._statistics = self._source.statistics
        self._groups = RowGroups(self._source, self._spec, self._statistics)
        self._order = row_order.EpochOrder(self._groups.rows, shuffle, seed, shuffle_buffer, self._source.files)
        self._rank, self._num_readers, self.epochs = rank, num_readers, epochs
        self._start = Position.beginning(0, self.rows, size)
        if position is not None:
            self._start = Position.restore(position, self._order, size)
        self.batch_size = batch_size

    @property
    def spec(self) -> FeatureSpec:
        """The FeatureSpec that the data was converted with."""
        return self._spec

    @property
    def statistics(self) -> dict[str, dict]:
        """Statistics of the training data: per dense feature `mean`, `std`, `min`, `max`; with quantiles
        `boundaries`."""
        return self._statistics

    def with_statistics(self, statistics: dict[str, dict]) -> "BatchReader":
        """Replaces the data's statistics by the ones that a model was trained with, which place its quantiles.

        Args:
          statistics: see the attribute `statistics`.

        Returns:
          a `BatchReader` that is otherwise the same as this one.
        """
        other = copy.copy(self)
        other._statistics = statistics
        other._groups = RowGroups(self._source, self._spec, statistics)
        return other

    @property
    def rows(self) -> int:
        """Number of rows of the whole data set."""
        return self._order.rows

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per whole epoch, the same on every worker."""
        return row_order.num_batches(row_order.even_shares([[0, self.rows]], len(self._start.shares)), self.batch_size)

    @property
    def steps_before(self) -> int:
        """Number of batches before this reader's start.

        If other settings (workers, batch size) read the rows before the start, this counts the batches that the present
        settings would have made of these rows.
        """
        left = row_order.num_batches(self._start.shares, self.batch_size)
        return (self._start.epoch + 1) * self.steps_per_epoch - left

    @property
    def steps(self) -> int | None:
        """Number of batches from this reader's start to its end, the same on every worker; None if it has no end."""
        if self.epochs is None:
            return None
        if self._start.epoch >= self.epochs:
            return 0
        epochs = self.epochs - self._start.epoch - 1
        return row_order.num_batches(self._start.shares, self.batch_size) + epochs * self.steps_per_epoch

    def position_after(self, steps: int) -> dict[str, Any]:
        """Computes where all workers stand when each of them has taken `steps` batches since this reader's start.

        The position is pure arithmetic, the same on every worker.

        Args:
          steps: batches per worker.

        Returns:
          dict of values that JSON can hold, for the argument `position` of a later reader.
        """
        return self._start.after(steps, self.batch_size, self.rows).to_dict(self._order)

    def __iter__(self) -> Iterator[Batch]:
        """Yields Batches from this reader's start on."""
        readers = [PieceReader(self._groups.reopened(), self._order) for _ in range(self._num_readers)]
        with OrderedMap(readers, self._places(), name=f"reading {self._source.name}") as pieces:
            for position in self._epochs_from_start():
                # None marks the end of an epoch's pieces.
                steps = row_order.num_batches(position.shares, self.batch_size)
                yield from batches(iter(pieces.__next__, None), steps, self.batch_size)

    def _epochs_from_start(self) -> Iterator[Position]:
        """Yields the position at which each epoch begins."""
        position = self._start
        while self.epochs is None or position.epoch < self.epochs:
            yield position
            position = Position.beginning(position.epoch + 1, self.rows, len(position.shares))

    def _places(self) -> Iterator[Place | None]:
        """Yields the Places that this worker reads, in order, and None after each epoch."""
        for position in self._epochs_from_start():
            yield from places(self._order, position.epoch, position.shares[self._rank])
            yield None
