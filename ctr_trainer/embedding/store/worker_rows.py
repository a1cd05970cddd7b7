"""The interface with which a worker looks up and trains the rows of one table, and the history of optimizer steps."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Sequence

import numpy as np

from ctr_trainer.embedding.table.row_space import InitialRows
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig

# A factor that float32 cannot distinguish from 1 is not worth a pass over the gradients.
_NO_FACTOR = 1e-7
_CATCH_UP_BLOCK = 8192  # Rows that are caught up at once under their lock.


class StepHistory:
    """The optimizer steps of a training: their number so far, their learning rates, and the factor of L2.

    A process knows only the rates of its own steps, so steps missed before a resume use the first known rate. `first`
    is the global step at which the process starts, and `l2` is the factor in l2 / 2 * sum w^2 over the whole table.
    """

    def __init__(self, first: int, l2: float) -> None:
        self._first, self._l2 = first, l2
        self._rates, self._count, self._knows_rate = np.zeros(1024, np.float32), 0, False

    @property
    def steps(self) -> int:
        """The number of optimizer steps so far."""
        return self._first + self._count

    def begin_step(self, learning_rate: float) -> None:
        """Sets the learning rate of the next step."""
        if self._count == len(self._rates):
            self._rates = np.concatenate([self._rates, np.zeros_like(self._rates)])
        if learning_rate or self._count:  # A first step without examples, whose rate is 0, keeps the expected rate.
            self._rates[self._count] = learning_rate
        self._knows_rate = True

    def end_step(self) -> None:
        """Counts the step that `begin_step` began."""
        self._count += 1

    def catch_up(self, config: TableConfig, rows: np.ndarray, slots: np.ndarray, taken: int) -> None:
        """Applies the steps that the rows at `slots`, distinct int64[U], missed, in place; -1 is skipped.

        `taken` is the rows' new number of steps; one more than `steps` if the caller then applies a step to them.
        """
        if not self._knows_rate:
            return  # The first step of a process applies the steps that its rows missed.
        optimizer = OPTIMIZERS[config.optimizer.name]
        assert optimizer.catch_up is not None
        of_steps = self._first, self._rates, self.steps, taken
        settings = np.float32(self._l2), *optimizer.kernel_settings(config.optimizer)
        optimizer.catch_up(rows, slots, np.array(config.dims), *of_steps, *settings)


def weighed(gradient: np.ndarray, weight: float, share: float, merge_factor: float) -> np.ndarray:
    """Returns merge_factor * share * weight * gradient, a micro-batch's contribution to the step of its rows.

    Args:
      gradient: the gradient of the mean loss of the micro-batch's examples.
      weight: the sum of the micro-batch's example weights; 1 if the micro-batch is the worker's whole step.
      share: number of workers / sum of the example weights of the step, or 1 / sum of this worker's weights if the
        workers do not exchange gradients in each step. 1 if the micro-batch is the whole step.
      merge_factor: the result of `merging.gradient_factor`, which scales each worker's gradient.
    """
    return times(gradient, merge_factor * share * weight)


def times(gradient: np.ndarray, factor: float) -> np.ndarray:
    """Returns `factor` * gradient, a float32 array."""
    return gradient if abs(factor - 1) <= _NO_FACTOR else gradient * np.float32(factor)


class WorkerRows(abc.ABC):
    """The rows of one table that a worker trains: the table's own rows, or copies of a store's rows.

    A slot is the index of a row in `rows`. Slots are valid until the next lookup or sync, except that a table with
    limits may evict rows for another worker or another micro-batch.

    Attributes:
      config: the TableConfig.
      hits: distinct keys, since the start, whose rows a lookup found up to date in the worker.
      misses: distinct keys whose rows a lookup requested from the store.
      bytes_synced: bytes of keys, versions and rows sent to and received from the store.
    """

    config: TableConfig
    hits = misses = bytes_synced = 0

    @abc.abstractmethod
    def take(self, slots: np.ndarray) -> np.ndarray:
        """Returns float32[U, weights], the weights at the slots; zeros for -1.

        Rows do not move, so reading exact rows needs no lock. A read during a step of another worker sees the current
        values.
        """

    @abc.abstractmethod
    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns int64[U] slots and creates no rows; the slot of a key without a row is -1."""

    @abc.abstractmethod
    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        """Returns int64[U] slots of distinct keys; a key without a row gets its initial row, if the limits admit it.

        `since` is the result of `RowCopies.pull_ahead` for these keys; None if their rows were not pulled ahead.
        """

    @abc.abstractmethod
    def apply_gradients(
        self, keys: np.ndarray, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float
    ) -> None:
        """Applies one optimizer step to the rows of `keys` at `slots`; see `Table.apply_gradients` for the arguments.

        A row that was evicted since its lookup is not trained.
        """

    def read(self, keys: np.ndarray, slots: np.ndarray, create: bool = False) -> np.ndarray:
        """Returns float32[U, weights], the weights of the rows that a lookup of `keys` found at `slots`.

        A key without a row has its initial weights if `create`, as in training, else zeros.
        """
        return self.take(slots)

    def initial(self, keys: np.ndarray) -> np.ndarray:
        """Returns float32[U, weights], those that a lookup now would give keys without rows."""
        return self.config.form.read(InitialRows(self.config).of(keys))

    def begin(self) -> None:
        """Prepares the rows; called before the first lookup, when the store has the initial rows of the training."""
        return

    def current(self, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Returns int64[U], where the rows of `keys` at `slots` are now: later lookups may have moved them."""
        return slots

    def l2_shares(self, slots: np.ndarray) -> np.ndarray | None:
        """Returns float32[U], the factor on L2 of each row at `slots`, see `merging`; None if all factors are 1."""
        return None

    def fetch(self, keys: np.ndarray) -> None:
        """Reads rows that lie on disk, outside the training thread, for a later lookup."""
        return

    @property
    def on_disk(self) -> bool:
        """Whether `fetch` may have to read."""
        return False

    @property
    def asks(self) -> bool:
        """Whether the store may have rows that this worker lacks."""
        return False


def take_weights(table: Table, slots: np.ndarray) -> np.ndarray:
    """Returns `WorkerRows.take`; locks a table whose weights and their scale are not written at once."""
    with contextlib.nullcontext() if table.config.form.is_exact else table.lock.shared():
        return table.take(slots, weights_only=True)


class TableRows(WorkerRows):
    """A `Table`'s own rows, which need no sync. Lookups and steps hold the table's lock, for threads and workers."""

    def __init__(self, table: Table) -> None:
        self.config = table.config
        self._table = table
        self._history: StepHistory | None = None

    def take(self, slots: np.ndarray) -> np.ndarray:
        return take_weights(self._table, slots)

    def fetch(self, keys: np.ndarray) -> None:
        self._table.fetch(keys)

    @property
    def on_disk(self) -> bool:
        return self._table.cold is not None

    def find(self, keys: np.ndarray) -> np.ndarray:
        lock = self._table.lock
        with lock.alone() if self._table.cold else lock.shared():
            return self._table.find(keys)

    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        with self._table.lock.shared():  # Workers usually find all rows, and look them up concurrently.
            slots, unknown = self._table.find_and_count(keys)
        if unknown:
            with self._table.lock.alone():
                self._table.create_missing(keys, slots)
        if self._history:
            with self._table.lock.alone():
                self._catch_up(slots, self._history.steps)
        return slots

    def read(self, keys: np.ndarray, slots: np.ndarray, create: bool = False) -> np.ndarray:
        weights = super().read(keys, slots)
        if create and self.config.has_limits:
            # Other workers may have evicted rows before or while they were read. Their keys went first.
            missing = np.flatnonzero(self._current(keys, slots) < 0)
            weights[missing] = self.config.form.read(self._table.initial_rows(keys[missing]))
        return weights

    def initial(self, keys: np.ndarray) -> np.ndarray:
        rows = InitialRows(self.config).of(keys)
        if self._history:
            self._history.catch_up(self.config, rows, np.arange(len(keys)), self._history.steps)
        return self.config.form.read(rows)

    def apply_gradients(
        self, keys: np.ndarray, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float
    ) -> None:
        with self._table.lock.alone():
            slots = self._current(keys, slots)
            if self._history:
                self._history.begin_step(learning_rate)
                self._catch_up(slots, self._history.steps + 1)
            self._table.apply_gradients(slots, gradients, learning_rate)
        if self._history:
            self._history.end_step()

    def current(self, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        if self._table.cold is None:
            return slots
        with self._table.lock.alone():
            return self._current(keys, slots)

    def follow_steps(self, history: StepHistory) -> None:
        """Applies the missed steps of a dense optimizer to the rows of each lookup, and to all rows in `catch_up`."""
        self._history = history

    def expect_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next step of a dense optimizer, for lookups before the first step."""
        assert self._history is not None
        self._history.begin_step(learning_rate)

    def catch_up(self) -> None:
        """Applies the missed steps of a dense optimizer to all rows."""
        if self._history:
            slots = np.flatnonzero(self._table.keys)
            for first in range(0, len(slots), _CATCH_UP_BLOCK):
                with self._table.lock.alone():
                    self._catch_up(slots[first : first + _CATCH_UP_BLOCK], self._history.steps)

    def _catch_up(self, slots: np.ndarray, taken: int) -> None:
        """Applies the steps that the rows at `slots` missed; `taken` is then their number of steps. Needs the lock."""
        assert self._history is not None
        self._table.before_change(slots)
        with self._table.opened(slots) as (rows, places):
            self._history.catch_up(self.config, rows, places, taken)

    def _current(self, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Returns the slots of `keys` that a lookup found, with -1 for each row that was evicted since."""
        table_keys = self._table.keys
        if not (self.config.evicts or self._table.cold) or not len(table_keys):
            return slots
        current = np.where((slots >= 0) & (table_keys[slots] == keys), slots, -1)
        # Another micro-batch may have sent rows to disk since.
        return self._table.find(keys) if self._table.cold and (current != slots).any() else current
