"""Reads batches of a data set in a shuffled order. Any number of workers can share the order and resume in it."""

import contextlib
import copy
import functools
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ctr_trainer.data import row_order
from ctr_trainer.data.batch import Batch, batches, rows_of
from ctr_trainer.data.blocks import ID_PREFIX, concatenated
from ctr_trainer.data.class_weight import without_negatives
from ctr_trainer.data.read_ahead import OrderedMap
from ctr_trainer.data.row_order import Place, Position
from ctr_trainer.data.source import Source, source_of
from ctr_trainer.features import hashing
from ctr_trainer.system.messages.errors import UserError


class BatchReader:
    """The batches of one worker. In each epoch, each row of the data set is in a batch of exactly one worker.

    Every worker makes the same number of batches, and each batch has exactly `batch_size` rows. A worker whose share of
    the data ends early adds padding, if necessary whole batches: rows whose weight, keys, labels and dense values are 0
    and whose bags are empty. The next buffers are read in the background. Up to `num_readers` + 2 buffers of about
    `shuffle_buffer` rows each are in memory.

    Args:
      data: the path of a data set that `convert` wrote, or another `Source`.
      batch_size: rows per batch.
      rank, size: rank of this worker, and number of workers.
      shuffle: whether to shuffle the rows; False keeps the order of the files.
      seed: random seed of the shuffling.
      epochs: number of epochs to read, counted from the beginning of training, not from `position`; None for no end.
      position: result of `position_after` for the same data, seed and shuffling; `size` and `batch_size` may differ.
      shuffle_buffer: approximate number of rows that are shuffled together.
      dim: embedding width of all sparse features; None for the widths in the spec.
      labels: whether the batches need labels. If False, as for prediction, missing labels are NaN.
      num_readers: number of threads that read buffers in advance, one buffer each. It does not affect the batches.
      negative_sampling: share of the negative examples to keep, see `class_weight.without_negatives`; None for all.

    Attributes:
      spec: the FeatureSpec that the data was converted with.
      statistics: statistics of the training data: `mean`, `std`, `min`, `max` per dense feature, `boundaries` of
        quantiles.
      epochs: see the argument.

    Raises:
      UserError: the data set does not exist, is empty, or lacks required labels; or the position belongs to another
        order of the rows.
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
        negative_sampling: float | None = None,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch size {batch_size} is not at least 1")
        if num_readers < 1:
            raise UserError(f"num_readers={num_readers} is not at least 1")
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not below the number of workers, {size}")
        self._source = source_of(data)
        self.spec = self._source.spec.with_dim(dim) if dim else self._source.spec
        if not sum(self._source.group_rows):
            raise UserError(f"data set {self._source.name}: it has no rows")
        if labels and not self._source.spec.labelled:
            raise UserError(
                f"data set {self._source.name}: it was converted without labels, which only `predict` accepts; convert "
                "labelled data to train or evaluate"
            )
        self.statistics = self._source.statistics
        self._buckets = hashing.buckets_of(self.spec, self.statistics)
        self._order = row_order.EpochOrder(self._source.group_rows, shuffle, seed, shuffle_buffer, self._source.files)
        self._rank, self._num_readers, self.epochs = rank, num_readers, epochs
        self._start = Position.beginning(0, self.rows, size)
        if position is not None:
            self._start = Position.restore(position, self._order, size)
        self.batch_size, self._share = batch_size, None if negative_sampling == 1 else negative_sampling

    def with_statistics(self, statistics: dict[str, dict]) -> "BatchReader":
        """Returns the same reader with the statistics of a trained model, so that batches use its quantiles."""
        other = copy.copy(self)
        other.statistics = statistics
        other._buckets = hashing.buckets_of(self.spec, statistics)
        return other

    @property
    def rows(self) -> int:
        """Number of rows of the whole data set."""
        return self._order.rows

    def id_types(self) -> dict[str, pa.DataType]:
        """Reads the Arrow types of the id columns from the first row group; of a dictionary, that of its values."""
        if not self.spec.ids:
            return {}
        with contextlib.closing(self._source.reopened()) as source:
            fields = source.read(0).schema
        types = {name: fields.field(ID_PREFIX + name).type for name in self.spec.ids}
        return {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in types.items()}

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per complete epoch, the same on every worker."""
        return row_order.num_batches(row_order.even_shares([[0, self.rows]], len(self._start.shares)), self.batch_size)

    @property
    def steps_before(self) -> int:
        """Number of batches before this reader's start.

        If the previous rows were read with another number of workers or batch size, this is the number of batches that
        the current settings would have made from these rows.
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
        """Computes the position of all workers after `steps` batches per worker since this reader's start.

        It is a dict, serializable as JSON, for the argument `position` of a later reader. The computation reads no data
        and has the same result on every worker.
        """
        return self._start.after(steps, self.batch_size, self.rows).to_dict(self._order)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the Batches from this reader's start."""
        with contextlib.ExitStack() as stack:
            # Each thread opens the files separately, because a source is not thread-safe.
            sources = [
                stack.enter_context(contextlib.closing(self._source.reopened())) for _ in range(self._num_readers)
            ]
            readers = [functools.partial(self._rows_at, source) for source in sources]
            pieces = stack.enter_context(OrderedMap(readers, self._places(), name=f"reading {self._source.name}"))
            for position in self._epochs_from_start():
                # None marks the end of an epoch's pieces.
                steps = row_order.num_batches(position.shares, self.batch_size)
                found = batches(iter(pieces.__next__, None), steps, self.batch_size, self._source.name)
                for number, batch in enumerate(found):
                    if self._share is not None:
                        left = row_order.advance(position.shares[self._rank], number * self.batch_size)
                        batch = without_negatives(batch, left, self._share, self._order.seed, position.epoch)
                    yield batch

    def _epochs_from_start(self) -> Iterator[Position]:
        """Yields the position at which each epoch begins."""
        position = self._start
        while self.epochs is None or position.epoch < self.epochs:
            yield position
            position = Position.beginning(position.epoch + 1, self.rows, len(position.shares))

    def _places(self) -> Iterator[Place | None]:
        """Yields the Places that this worker reads, in order, followed by None at the end of each epoch."""
        for position in self._epochs_from_start():
            yield from self._order.places(position.epoch, position.shares[self._rank])
            yield None

    def _rows_at(self, source: Source, place: Place | None) -> pa.Table | None:
        """Reads the rows of a Place from `source`; returns None for None, which marks the end of an epoch."""
        if place is None:
            return None
        table = concatenated([source.read(group) for group in place.buffer.groups], source.name)
        rows = rows_of(table, self.spec, self._buckets)
        order = self._order.permutation(place.epoch, place.buffer)
        if order is None:
            return rows.slice(place.start, place.stop - place.start)
        return rows.take(order[place.start : place.stop])
