"""A table of embedding rows that grows with new keys."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.memory.growable_array import TableMemory, as_float32, as_int64
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.changes import Capture, Changes, PublishedRows
from ctr_trainer.embedding.table.cold_rows import INDEX_BYTES_PER_ROW, ColdRows, Disk
from ctr_trainer.embedding.table.row_form import RowForm
from ctr_trainer.embedding.table.row_limits import RowLimits, row_counters
from ctr_trainer.embedding.table.row_space import InitialRows, RowWatcher
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table_config import TableConfig

_log = logging.getLogger(__name__)
# The number of rows that are prefetched together before their segments are updated: few enough to stay in the core's
# second-level cache. An Adagrad step of 8,600 rows of 17 weights in a table of 195,000 rows takes 0.18 ms, and 0.29 ms
# without prefetching.
_STEP_BLOCK = 2048
_MORE_BYTES_OF_A_ROW = 32  # Besides its floats, in memory: its key, index, use, version and bits.
# The part of the rows in memory that goes to disk at once if memory is full, and the upper bound of their number.
# RocksDB merges larger files less often.
_LEAVING_SHARE, _MOST_LEAVING = 1 / 16, 1 << 19
_MOST_SWEPT = 1 << 18  # Rows on disk that `expire_on_disk` looks at in one call.
_MORE_BYTES_ON_DISK = 16  # The key and the use; without rows that are out of date.


class Table:
    """Rows of `config.width` float32 values, found by a 64-bit key.

    The rows lie in one array, in the form `config.form`, in slot order, the order of their creation. A slot stays valid
    until its row is removed; then a later new row reuses the slot. The key 0 stands for "no value": it has the slot -1
    and never has a row.

    `config` limits the rows. `find_or_create` first counts a key (`min_frequency`) and makes room for its row
    (`max_rows`). `expire` removes rows that were not trained for too long (`ttl_steps`).

    Several processes may each make a Table in the same `SharedMemory`. The limits then apply to all of them together.

    With a `Disk`, the rows beyond `most_in_memory` lie there: the ones with the fewest trainings for their age. They
    return to memory when they are looked up, with the same bits. So this table trains as a table in memory does.

    Caveat: a table is not thread-safe. If several threads or processes use it, each holds `lock` while it calls a
    method. `keys` and `stored` are views that are valid until a row is created. Call `before_change` before writing to
    `stored`.

    Attributes:
      lock: the `RowLock` of the table. Only callers take it.
      changes: `Changes` since the last snapshot; None unless `tracked`.
      published: `PublishedRows`; None until `keep_published`.
      watchers: each `RowWatcher` of the rows.
      cold: the `ColdRows`; None for a table in memory.
      most_in_memory: the number of rows that `share_memory` lets stay in memory. A lookup of more rows at once exceeds
        it.
    """

    def __init__(
        self,
        config: TableConfig,
        tracked: bool = False,
        most_rows: int | None = None,
        memory: TableMemory | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Makes an empty table, or opens the table that the owner of shared memory has made there.

        `tracked` keeps the changes for the next snapshot; `most_rows` is of `RowLimits`.
        """
        self.config, self._initial = config, InitialRows(config)
        self._memory = memory = memory or TableMemory()
        self.lock = memory.lock("table")
        self._form, self._index = config.form, Index(memory)
        self._rows = memory.array("rows", np.float32, (self._form.lanes,))
        self._optimizer = OPTIMIZERS[config.optimizer.name]
        self._settings = self._optimizer.kernel_settings(config.optimizer)
        self._segments = self._optimizer.segments(config.dims)
        self.limits = RowLimits(config, most_rows, memory, uses=disk is not None)
        self.cold = ColdRows(disk, self._form.nbytes) if disk else None
        self.most_in_memory = self._swept_at = 0
        self.counters = row_counters(memory)
        self.changes = Changes(memory) if tracked else None
        self.published: PublishedRows | None = None
        self.watchers: list[RowWatcher] = [each for each in (self.changes, self.limits.usage) if each is not None]

    def __len__(self) -> int:
        return len(self._index) + (self.cold.count if self.cold else 0)

    def share_memory(self, nbytes: int) -> None:
        """Sets the memory that the rows may use; the others go to disk when new rows come."""
        self.most_in_memory = max(nbytes // (self._form.nbytes + _MORE_BYTES_OF_A_ROW), 1)
        _log.info(
            "table %s: %d rows fit into %.1f MB of memory; 1,000,000,000 rows need %.1f GB of memory for the index and "
            "%d GB of disk",
            self.config.name,
            self.most_in_memory,
            nbytes / 1e6,
            INDEX_BYTES_PER_ROW,
            self._form.nbytes + _MORE_BYTES_ON_DISK,
        )

    @property
    def keys(self) -> np.ndarray:
        """The keys, int64[n], in slot order; 0 for a free slot."""
        return self._index.keys

    @property
    def stored(self) -> np.ndarray:
        """The rows in their form, float32[n, lanes], in slot order."""
        return self._rows.array[: self._index.slots]

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._index.slots * (self._form.nbytes + 8 * self.config.evicts)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns the slots of the keys, int64[U]; -1 for unknown keys and for the key 0. Rows on disk return first."""
        keys = as_int64(keys)
        slots = self._index.find(keys)
        self._return_from_disk(keys, slots)
        return slots

    def find_in_memory(self, keys: np.ndarray) -> np.ndarray:
        """Returns the slots as `find` does, but leaves rows that are on disk there: their slots are -1."""
        return self._index.find(as_int64(keys))

    def has(self, keys: np.ndarray) -> np.ndarray:
        """Returns bool[U], whether each key has a row, in memory or on disk."""
        has = self.find_in_memory(keys) >= 0
        if self.cold is not None:
            missing = np.flatnonzero(~has)
            has[missing[self.cold.read(keys[missing])[0]]] = True
        return has

    def read_cold(self, epoch: Capture | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (keys int64[n], float32[n, width]) of all rows on disk, or (keys, weights) of those of an epoch.

        Takes the lock itself. A row that returns to memory meanwhile may be missing, but not in an epoch.
        """
        if self.cold is None:
            return
        for some, packed in self.cold.read_blocks(epoch.left if epoch else None):
            with self.lock.shared():
                slots = self.find_in_memory(some)
                there = slots < 0
                # The rows that returned since the epoch began are in none of its blocks.
                back = np.flatnonzero(~there & ~epoch.took(slots)) if epoch else slots[:0]
                returned = self.take(slots[back], weights_only=True)
            yield some[there], self._form.unpacked(packed[there], weights_only=epoch is not None)
            if len(back):
                yield some[back], returned

    def find_and_count(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns (the slots as `find` does, the number of other keys than 0 whose rows are not in memory)."""
        return self._index.find_and_count(as_int64(keys))

    def fetch(self, keys: np.ndarray) -> None:
        """Reads rows on disk, which a later call will need, into memory. Takes the lock itself."""
        if self.cold is not None:
            with self.lock.shared():
                slots = self.find_in_memory(keys)
            self.cold.looked_up += len(keys)
            self.cold.fetch(keys[(slots < 0) & (keys != 0)])

    def find_or_create(self, keys: np.ndarray) -> np.ndarray:
        """Returns the slots of the keys, int64[U]; a missing row is created with its initial values.

        The slot is -1 for the key 0, and for a key that gets no row because of the limits. If the memory runs out, this
        raises UserError, and the table is unchanged.
        """
        slots, unknown = self.find_and_count(keys)
        if unknown:
            self.create_missing(keys, slots)
        return slots

    def create_missing(self, keys: np.ndarray, slots: np.ndarray) -> None:
        """Creates a row for each keys[i] whose slots[i] is -1, as `find_or_create` does, and sets slots[i]."""
        self._return_from_disk(keys, slots)
        missing = np.flatnonzero((slots < 0) & (keys != 0))
        unknown = keys[missing]
        if not len(unknown):
            return
        made = self.limits.admit(unknown, self.counters)
        self._evict(self.limits.surplus(self._index, made, slots))
        made = made[: self.limits.room(self._index, len(made))]
        self.counters.refused += len(unknown) - len(made)
        self._make_room(len(made), slots)
        found = self._make(made, initialize=True)
        slots[missing] = found if len(made) == len(unknown) else self._index.find(unknown)

    def initial_rows(self, keys: np.ndarray) -> np.ndarray:
        """Returns float32[U, width], the initial rows of the keys, a pure function of (config.seed, key)."""
        return self._initial.of(as_int64(keys))

    def take(self, slots: np.ndarray, weights_only: bool = False) -> np.ndarray:
        """Returns a copy of the rows at the slots, see `RowForm.take`."""
        return self._form.take(self._rows.array, slots, weights_only)

    def opened(self, slots: np.ndarray) -> AbstractContextManager[tuple[np.ndarray, np.ndarray]]:
        """Returns a context manager in which the rows at the slots may be changed, see `RowForm.opened`."""
        return self._form.opened(self._rows.array, slots)

    def find_or_insert(self, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Sets the rows of `keys` to `rows`, float32[U, width], creating missing ones; returns the slots, int64[U]."""
        if self.cold is not None:
            self.find(keys)
        return self._put(as_int64(keys), rows)

    def reserve(self, rows: int) -> None:
        """Makes room for so many more rows that `restore` will bring, as far as they fit into memory."""
        rows = min(rows, self.most_in_memory) if self.cold else rows
        self._index.reserve(len(self._index) + rows)

    def restore(self, keys: np.ndarray, stored: np.ndarray, form: RowForm) -> np.ndarray:
        """Inserts rows of the last snapshot, which are not there, and counts them apart; returns their slots.

        `stored`: float32[U, lanes], the rows in `form`.
        """
        created, rows = self.counters.created, stored if form is self._form else form.decode(stored)
        slots = self._put(as_int64(keys), rows, is_stored=form is self._form)
        if self.changes is not None:
            self.changes.restored(slots)
        self.counters.restored += self.counters.created - created
        self.counters.created = created
        return slots

    def remove(self, keys: np.ndarray) -> int:
        """Removes the rows of `keys`, int64[U], and returns their number; unknown keys are skipped."""
        keys = as_int64(keys)
        slots = self._index.find(keys)
        there = slots >= 0
        for watcher in self.watchers:
            watcher.before_removal(self, slots[there])
        self._index.remove(keys)
        count = int(there.sum())
        if self.cold is not None:
            self.cold.forget(keys[there])
            gone = self.cold.remove(keys[~there])
            count += len(gone)
            for watcher in self.watchers:
                watcher.removed_on_disk(gone)
        return count

    def advance(self, step: int) -> None:
        """Sets the clock of `lru` and `ttl_steps` to the global step `step`; `expire` evicts the expired rows."""
        if self.limits.usage is not None and self.config.evicts:
            self.limits.usage.step = max(step, 1)

    def expire(self, start: int = 0) -> int | None:
        """Evicts rows last trained more than `ttl_steps` steps ago, in a bounded range of slots from `start` on.

        Returns the slot from which the next call must continue; None at the end.
        """
        slots, stop = self.limits.expired(self.keys, start)
        self._evict(slots)
        return stop if stop < self._index.slots else None

    def expire_on_disk(self) -> None:
        """Evicts rows on disk as `expire` does; looks once at all of them in `ttl_steps` steps. Takes the lock itself.

        A call looks at `_MOST_SWEPT` rows at most, so very many rows take longer. A row of which it is not known when
        it was last trained counts as trained now.
        """
        ttl, usage = self.config.ttl_steps, self.limits.usage
        if self.cold is None or not ttl or usage is None:
            return
        share, self._swept_at = (usage.step - self._swept_at) / ttl, usage.step
        left = min(share * self.cold.count, _MOST_SWEPT)
        while left > 0:
            with self.lock.alone():
                keys, rows, use = self.cold.sweep()
                there = self.find_in_memory(keys) < 0
                self._forget(keys[there & self.limits.have_expired(use[0])])
                if (new := there & (use[0] == 0)).any():
                    now = np.full(new.sum(), usage.step, np.uint32)
                    self.cold.write(keys[new], rows[new], np.stack([now, use[1][new]]))
                    self.cold.count -= len(now)
            left = left - len(keys) if len(keys) else 0

    def trim(self) -> None:
        """Evicts rows until there are no more than `max_rows`."""
        self._evict(self.limits.surplus(self._index))

    def before_change(self, slots: np.ndarray) -> None:
        """Reports that the rows at `slots`, distinct int64[U], are about to be trained or set; -1 is skipped."""
        for watcher in self.watchers:
            watcher.before_change(self, slots)

    def keep_published(self) -> PublishedRows:
        """Tracks `published` from now on, and returns it. Does nothing else if it is already tracked."""
        if self.published is None:
            self.published = PublishedRows(self._memory)
            self.watchers.append(self.published)
        return self.published

    def stats(self) -> dict[str, int]:
        return dict(
            rows=len(self),
            bytes=self.nbytes,
            **dict(zip(self.counters.dtype.names, self.counters.tolist(), strict=True)),
            **(self.cold.stats() if self.cold else {}),
        )

    def admission_counts(self) -> tuple[np.ndarray, int] | None:
        """Returns `Admission.counts`; None if the table has no counting filter."""
        return None if self.limits.admission is None else self.limits.admission.counts()

    def use_of(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns (last_used uint32[U], frequency uint32[U]) of the slots; None for a table that evicts no rows."""
        return None if self.limits.usage is None else self.limits.usage.get(slots)

    def set_use(self, keys: np.ndarray, last_used: np.ndarray, frequency: np.ndarray) -> None:
        """Sets the values that `use_of` returns for the slots of `keys`; unknown keys are skipped."""
        if self.limits.usage is not None:
            self.limits.usage.set(self._index.find(keys), last_used, frequency)

    def apply_gradients(self, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        """Applies one optimizer step to each row at `slots`, distinct int64[U]; -1 is skipped.

        `gradients` has float32[U, dim] per segment, already summed over equal keys. A segment with fewer gradients is
        trained in the first rows only. A row that is not in `slots` keeps its weights and its state; with a dense
        optimizer, the missed step is applied when the row is next read, see `missed_steps`.
        """
        for dim, gradient in zip(self.config.dims, gradients, strict=True):
            if gradient.shape[1] != dim or len(gradient) > len(slots):
                raise ValueError(f"gradient of shape {gradient.shape}, expected {(len(slots), dim)}")
        slots, gradients = as_int64(slots), [as_float32(gradient) for gradient in gradients]
        self.before_change(slots)
        for first in range(0, len(slots), _STEP_BLOCK):
            block = slice(first, first + _STEP_BLOCK)
            row_kernels.fetch(self._rows.array, slots[block])
            with self.opened(slots[block]) as (rows, places):
                for gradient, (start, state) in zip(gradients, self._segments, strict=True):
                    part = gradient[block]
                    own = places[: len(part)]
                    self._optimizer.step(rows, own, part, start, state, learning_rate, *self._settings)

    def clear(self) -> None:
        for watcher in self.watchers:
            watcher.before_clear(self)
        self._index.clear()
        self.limits.clear()
        if self.cold is not None:
            self.cold.clear()

    def _put(self, keys: np.ndarray, rows: np.ndarray, is_stored: bool = False) -> np.ndarray:
        """Sets the rows of keys that are in memory or nowhere, which may have the table's form; returns their slots."""
        if self._excess(len(keys)) > 0:
            self._make_room(len(keys), self._index.find(keys))
        slots = self._make(keys)
        self.before_change(slots)
        if is_stored:
            row_kernels.put(self._rows.array, slots, rows)
        else:
            self._form.put(self._rows.array, slots, rows)
        return slots

    def _return_from_disk(self, keys: np.ndarray, slots: np.ndarray) -> None:
        """Returns the rows on disk of those `keys` whose slots are -1 to memory, and sets their slots."""
        if self.cold is None or not self.cold.count:
            return
        missing = np.flatnonzero((slots < 0) & (keys != 0))
        places, rows, use = self.cold.read(keys[missing])
        if (expired := self.limits.have_expired(use[0])).any():
            self._forget(np.unique(keys[missing[places[expired]]]))
            places, rows, use = places[~expired], rows[~expired], use[:, ~expired]
        if not len(places):
            return
        self._make_room(len(places), slots)
        created = self.counters.created
        found = self._make(keys[missing[places]])
        self.cold.count -= int(self.counters.created - created)  # A reader's request may repeat a key.
        self.counters.created = created
        row_kernels.put(self._rows.array, found, np.ascontiguousarray(rows).view(np.float32))
        slots[missing[places]] = found
        assert self.limits.usage is not None
        now = np.full(len(found), self.limits.usage.step, np.uint32)
        self.limits.usage.set(found, np.where(use[0], use[0], now) if self.config.ttl_steps else now, use[1])
        for watcher in self.watchers:
            watcher.returned(found)

    def _forget(self, keys: np.ndarray) -> None:
        """Evicts rows on disk, int64[n] keys, that are not in memory."""
        assert self.cold is not None
        self.cold.forget(keys)
        self.cold.count -= len(keys)
        self.counters.evicted += len(keys)
        for watcher in self.watchers:
            watcher.removed_on_disk(keys)

    def _excess(self, count: int) -> int:
        """Returns how many rows have to leave memory before `count` more fit."""
        return len(self._index) + count - self.most_in_memory if self.cold else 0

    def _make_room(self, count: int, needed: np.ndarray) -> None:
        """Writes rows to disk until `count` more fit into memory, but not the rows at the slots `needed`."""
        excess = self._excess(count)
        if self.cold is None or excess <= 0:
            return
        assert self.limits.usage is not None
        excess = max(excess, min(int(self.most_in_memory * _LEAVING_SHARE), _MOST_LEAVING))
        slots = self.limits.usage.coldest(self.keys, excess, needed)
        keys = self.keys[slots]
        use = np.stack(self.limits.usage.get(slots))
        if not self.config.ttl_steps:  # The clock counts trainings of rows then, and a later run may count steps.
            use[0] = 0
        self.cold.write(keys, self.stored[slots].view(np.uint8), use)
        for watcher in self.watchers:
            watcher.before_leaving(self, slots)
        self._index.remove(keys)

    def _make(self, keys: np.ndarray, initialize: bool = False) -> np.ndarray:
        """Returns int64[U] slots and creates every missing row."""
        before, count = self._index.slots, len(self)
        # Reserves the rows first: if there is no memory, the index does not change either.
        self._rows.reserve(before + len(keys))
        free = self._index.free_slots(len(keys))
        slots = self._index.find_or_add(keys)
        made = len(self) - count
        if made:
            self.counters.created += made
            reused = free[len(free) - min(made, len(free)) :]
            first = slice(before, self._index.slots)
            if initialize:
                self._rows.array[first] = self._initial.stored(self.keys[first])
                row_kernels.put(self._rows.array, reused, self._initial.stored(self.keys[reused]))
            new = np.concatenate([np.arange(before, self._index.slots), reused]) if self.watchers else reused
            for watcher in self.watchers:
                watcher.created(new, self._index.slots)
        return slots

    def _evict(self, slots: np.ndarray) -> None:
        if len(slots):
            self.counters.evicted += self.remove(self.keys[slots])
