"""The objects that feed a graph, batch by batch, and train the rows of what they fed."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.embeddings import Embeddings, TableLookup
from ctr_trainer.estimator.inputs import GraphInput
from ctr_trainer.system.measuring.latency import Latency


@dataclasses.dataclass(frozen=True)
class Fed:
    """A batch that is ready for a run of the graph: its feed_dict, and the lookups of its rows.

    `batch` is None if the graph reads its input itself.
    """

    feed: dict[tf.Tensor, np.ndarray] = dataclasses.field(default_factory=dict)
    batch: Batch | None = None
    tables: Sequence[TableLookup] = ()


class Feed:
    """Feeds a graph. This base class feeds nothing; it serves graphs that read their input themselves.

    Args:
      inputs: the input from which the graph was built.
      trains: whether the graph is trained; otherwise it is evaluated or predicts.

    Attributes:
      fetches, last_fetches: the tensors that each run of a step fetches for `add` or, in the last run, for `train`.
      embeddings: looks up the graph's embedding inputs; None if the graph is fed nothing.
      new_keys: the shares of keys that were never trained.
      latencies: the latency of each operation on batches and rows, in all threads.
      examples: the number of examples that were fed since `rewind`, or that the graph has read.
      has_ended: whether no rank has another batch, as far as known. Otherwise `next` or the run raises at the end.
      is_live: whether the examples come from a stream.
      stream_state: f() -> {`event_seconds`: the newest event time in seconds since 1970, 0 before the first event;
        `lag_records`: number of records that are not read yet}; None without a stream, and on ranks other than 0.
      status_lines: functions f() -> a line for the log.
    """

    embeddings: Embeddings | None = None
    latencies: Sequence[Latency] = ()
    is_live = False
    stream_state: Callable[[], dict[str, float]] | None = None
    status_lines: Sequence[Callable[[], str]] = ()

    def __init__(self, inputs: GraphInput, trains: bool) -> None:
        self.inputs, self.new_keys = inputs, NewKeys()
        self.fetches: list[tf.Tensor] = [inputs.weight] if trains else []
        self.fetches += [inputs.next_total] if trains and inputs.next_total is not None else []
        self.last_fetches = self.fetches
        self.examples, self.has_ended = 0, False

    @property
    def event_seconds(self) -> Callable[[], float] | None:
        """f() -> the newest event time in seconds since 1970; None if unknown, and on ranks other than 0."""
        state = self.stream_state
        return None if state is None else lambda: state()["event_seconds"]

    def rewind(self) -> None:
        """Restarts at the first batch. An input that the graph reads itself restarts in each session."""

    def begin_training(self, session: tf1.Session, step: int) -> None:
        """Prepares the rows for the first step after `step`."""

    def next(self) -> Fed:
        """Reads the next batch and looks up its rows. Raises StopIteration at the end of the input."""
        return Fed()

    def add(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        """Keeps the row gradients of a micro-batch; `fetched` are the values of `fetches`."""
        self.train(fed, fetched)

    def train(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        """Trains the rows of the step that the batch `fed` completes; `fetched` are the values of `last_fetches`."""
        self.examples += int(fetched[0])
        self.has_ended = len(fetched) > 1 and fetched[1] == 0

    def sync_if_due(self, step: int) -> None:
        """Starts a sync of the rows, or removes expired rows, if either is due after `step`."""

    def flush(self) -> None:
        """Returns when the store has every change made by the steps so far."""

    def position_after(self, steps: int) -> dict[str, Any] | None:
        """Returns the position of the input after `steps` steps of every worker; None if it is unknown."""
        return None

    def committed(self, position: dict[str, Any] | None) -> None:
        """Notifies the input that a checkpoint with this position is complete."""

    def epochs_after(self, steps: int) -> float | None:
        """Returns the number of epochs completed after `steps` steps; None if it is unknown."""
        return None

    def with_columns(self, fed: Fed, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the predictions for the examples of a batch, with the id columns and the labels of the data."""
        return predictions

    def close(self) -> None:
        """Stops the threads that read ahead and sync. They use the store, so call this before closing the store."""
