"""Input functions for arrays in memory, and wrappers for the batch readers and datasets that an `input_fn` returns."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.feed import DatasetInput, example_count, read_in_graph
from ctr_trainer.estimator.run_length import Epochs
from ctr_trainer.features.columns import Statistics
from ctr_trainer.ranks import distributed
from ctr_trainer.system.measuring.clock import PHASES
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], tf.data.Dataset]:
    """Returns an `input_fn` that reads this rank's share of the examples: every Kth example with K ranks.

    Args:
      x: array, or dict of name -> array; all arrays have the same length.
      y: labels, an array or a dict of arrays; None if there are no labels.
      batch_size: number of examples in each worker's batch.
      num_epochs: number of times to read the examples; None repeats them forever.
      shuffle: whether to shuffle the examples in each epoch.
      queue_capacity: size of the shuffle buffer, in examples.
      num_threads: not used.
    """

    def input_fn() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((x, y) if y is not None else x)
        data = data.shard(distributed.size(), distributed.rank())
        if shuffle:
            data = data.shuffle(queue_capacity)
        return data.repeat(num_epochs).batch(batch_size)

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], tf.data.Dataset]:
    """Returns an `input_fn` that reads the columns of a DataFrame; see `numpy_input_fn`.

    Args:
      x: `pandas.DataFrame`.
      y: `pandas.Series` or `pandas.DataFrame` of labels; None if there are no labels.
      batch_size, num_epochs, shuffle, queue_capacity, num_threads: see `numpy_input_fn`.
      target_column: not used, because the labels are `y`.
    """
    labels = y if y is None or getattr(y, "ndim", 1) == 1 else _columns(y)
    labels = np.asarray(labels) if labels is not None and not isinstance(labels, Mapping) else labels
    return numpy_input_fn(_columns(x), labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def _columns(frame: Any) -> dict[str, np.ndarray]:
    columns = {name: frame[name].to_numpy() for name in frame}
    return {name: values.astype(str) if values.dtype == object else values for name, values in columns.items()}


class GivenReader:
    """Wraps a reader, and supplies defaults for the optional attributes that it lacks.

    Args:
      reader: a `data.reader.BatchReader`, or another iterable of `Batch` with `spec`, `statistics` and `batch_size`. If
        its spec has quantiles, it also needs `with_statistics`, so that a model can be evaluated on data with other
        statistics.

    Attributes:
      steps: number of batches from the reader's start to its end; None if unknown.
      steps_per_epoch: number of batches in a whole epoch; None if unknown.
      in_epochs: `Epochs` of the reader; None if unknown.
      epochs: number of the epoch before which the reader stops; None for no end, or if unknown.
      is_live: whether examples arrive one by one, as in a stream.
      position_after: f(steps) -> the position after every worker has read `steps` batches since the reader's start;
        None if unknown.
      committed: f(position), called after a checkpoint with this position is complete.
      status_lines: f(`NewKeys`) -> list of functions, each of which returns a line for the log.
      stream_state: for a stream, f() -> {`event_seconds`: the newest event time in seconds since 1970, 0 before the
        first event; `lag_records`: number of records that are not read yet}; None otherwise.
      read_latency: OpsReadSample: the time that the reader takes for each batch.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.spec, self.statistics, self.batch_size = reader.spec, reader.statistics, reader.batch_size
        self.steps: int | None = getattr(reader, "steps", None)
        self.epochs: int | None = getattr(reader, "epochs", None)
        self.steps_per_epoch: int | None = getattr(reader, "steps_per_epoch", None)
        before, rows = getattr(reader, "steps_before", None), getattr(reader, "rows", None)
        self.in_epochs: Epochs | None = None
        if self.steps_per_epoch is not None and before is not None:
            self.in_epochs = Epochs(self.steps_per_epoch, before, rows)
        self.is_live: bool = getattr(reader, "is_live", False)
        self.position_after: Callable[[int], Any] = getattr(reader, "position_after", lambda steps: None)
        self.committed: Callable[[Any], None] = getattr(reader, "committed", lambda position: None)
        self.status_lines: Callable[[NewKeys], Sequence[Callable[[], str]]] = getattr(
            reader, "status_lines", lambda _: ()
        )
        self.stream_state: Callable[[], dict[str, float]] | None = getattr(reader, "stream_state", None)
        self.read_latency = Latency(PHASES["read"].operation)

    def with_statistics(self, statistics: Statistics) -> "GivenReader":
        """Returns the reader with the statistics of the training data, which define a model's quantiles."""
        return GivenReader(self._reader.with_statistics(statistics))

    def __iter__(self) -> Iterator[Batch]:
        return self.read_latency.each(self._reader)


class WholeSteps:
    """The batches of a reader, followed by zero-weight batches that complete the last optimizer step.

    Training therefore uses the last examples even if they do not fill a step. All ranks have the same number of
    batches, so all ranks add the same number. The added batches repeat the last batch, so they look up no other row.

    Args:
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
        for _ in range(-count % self._per_step):  # Empty if there was no batch, so `last` is defined.
            yield dataclasses.replace(last, size=0, weights=np.zeros_like(last.weights))

    def taken_by(self, steps: int) -> int:
        """Returns the number of the reader's own batches in the first `steps` steps."""
        batches = steps * self._per_step
        return batches if self._count is None else min(batches, self._count)


class PaddedInput(DatasetInput):
    """The input of a rank, followed by zero-weight batches until the inputs of all ranks have ended.

    A zero-weight batch repeats the last batch. In each step, one exchange of a number, which runs concurrently with the
    computation, counts the ranks that have another batch, so that all ranks end after the same step.

    Args:
      data: this rank's `tf.data.Dataset`, read one batch ahead.
      has_read: callback f(), called after each batch is read, or None.

    Attributes:
      weight: scalar float32, the number of examples in this rank's batch; 0 for a zero-weight batch.

    Raises:
      UserError: `data` is not a Dataset.
    """

    def __init__(self, data: Any, has_read: Callable[[], None] | None = None) -> None:
        if not isinstance(data, tf.data.Dataset):
            raise UserError(
                f"uneven_inputs='pad' is for a tf.data.Dataset, and input_fn returned {type(data).__name__}: use "
                "uneven_inputs='error' (a BatchReader has as many batches on all ranks)"
            )
        batch, (self.weight, has_next) = read_in_graph(padded(data))
        super().__init__(batch, has_read)
        with tf.device("/cpu:0"):
            self.next_total = distributed.allreduce(has_next, "ranks_with_a_batch")

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(labels) * tf.minimum(self.weight, 1.0)


def padded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a Dataset of (element, (weight, has_next)) that repeats the last element of `dataset` forever.

    `weight` is the number of examples in the element, or 0 for a repetition. `has_next` is 1 if another element follows
    that is not a repetition, and 0 otherwise. Both are float32. If `dataset` is empty, the result is empty, too.
    """
    spec = dataset.element_spec
    none = tuple(_zeros(part) for part in _parts(spec))
    elements = dataset.map(lambda *parts: (_parts(parts if isinstance(spec, tuple) else parts[0]), True))
    endless = elements.concatenate(tf.data.Dataset.from_tensors((none, False)).repeat())

    def step(state: Any, following: Any) -> Any:
        (element, counts, begun), (next_element, next_counts) = state, following
        kept = tf.cond(next_counts, lambda: next_element, lambda: element)
        return (kept, next_counts, True), (element, counts, next_counts, begun)

    def finished(element: Any, counts: tf.Tensor, has_next: tf.Tensor, begun: tf.Tensor) -> Any:
        whole = tf.nest.pack_sequence_as(spec, element, expand_composites=True)
        parts = whole if isinstance(whole, tuple) and len(whole) == 2 else (whole, None)
        weight = tf.where(counts, tf.cast(example_count(*parts), tf.float32), 0.0)
        return whole, (weight, tf.cast(has_next, tf.float32))

    steps = endless.scan((none, False, False), step)
    return steps.take_while(lambda element, counts, has_next, begun: begun | has_next).skip(1).map(finished)


def _parts(element: Any) -> tuple[tf.Tensor, ...]:
    return tuple(tf.nest.flatten(element, expand_composites=True))


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns the smallest tensor that conforms to a `tf.TensorSpec`."""
    return tf.zeros([size or 0 for size in spec.shape.as_list()] if spec.shape.rank else [], spec.dtype)
