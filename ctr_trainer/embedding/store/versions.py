"""Row versions, which show the rows that changed since a client last read them."""

from __future__ import annotations

import dataclasses

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import AHEAD, kernel, prefetch, prefetch_row
from ctr_trainer.embedding.memory.growable_array import GrowableArray
from ctr_trainer.embedding.table.row_form import RowForm
from ctr_trainer.embedding.table.row_kernels import MESSAGE_ROWS, ROWS_OUT, refuse_not_finite
from ctr_trainer.embedding.table.row_space import RowWatcher, WatchedTable
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.system.messages.errors import UserError

VERSIONS = types.Array(types.uint32, 1, "C", readonly=True)
VERSIONS_OUT = types.Array(types.uint32, 1, "C")
POSITIONS_OUT = types.Array(types.int64, 1, "C")
# The version of a key without a row: the key reads its initial row, which each worker can compute.
ABSENT = 0
# The version that a caller sends to get the row in any case.
NONE_KNOWN = 2**32 - 1


@kernel(types.int64(VERSIONS, SLOTS, VERSIONS, VERSIONS_OUT, POSITIONS_OUT))
def differing_versions(
    current: np.ndarray, slots: np.ndarray, known: np.ndarray, versions: np.ndarray, positions: np.ndarray
) -> int:
    """Sets versions[i] = the version at slots[i], 0 for the slot -1, and finds each i where it is not known[i].

    Fills `positions` with these i, and returns their number.
    """
    count = 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(current, slots[i + AHEAD])
        version = np.uint32(0)
        if slots[i] >= 0:
            version = current[slots[i]]
        versions[i] = version
        if version != known[i]:
            positions[count] = i
            count += 1
    return count


@kernel(
    types.int64(ROWS_OUT, SLOTS, VERSIONS_OUT, SLOTS, VERSIONS, MESSAGE_ROWS, types.uint32, POSITIONS_OUT, ROWS_OUT)
)
def merge_rows(
    rows: np.ndarray,
    places: np.ndarray,
    current: np.ndarray,
    slots: np.ndarray,
    known: np.ndarray,
    deltas: np.ndarray,
    number: int,
    positions: np.ndarray,
    newer: np.ndarray,
) -> int:
    """Adds `deltas` to the rows at `slots`, int64[U] without -1, and copies the rows whose version was not known[i].

    Args:
      places: int64[U], the places of the rows at `slots` in `rows`.
      number: the new version of the rows.
      positions, newer: outputs: each i whose version was not known[i], and that row with its delta added.

    Returns the number of elements of `positions` and `newer` that are set.
    """
    count = 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(current, slots[i + AHEAD])
            prefetch_row(rows, places[i + AHEAD])
        slot, place = slots[i], places[i]
        if current[slot] == known[i]:
            for d in range(np.uint64(rows.shape[1])):
                rows[place, d] += deltas[i, d]
        else:
            for d in range(np.uint64(rows.shape[1])):
                value = rows[place, d] + deltas[i, d]
                rows[place, d] = value
                newer[count, d] = value
            positions[count] = i
            count += 1
        current[slot] = number
    return count


def check_versions(table: str, keys: np.ndarray, versions: np.ndarray) -> None:
    """Raises UserError if the versions are not one uint32 per key."""
    if versions.dtype != np.uint32 or versions.shape != keys.shape:
        raise UserError(f"table {table}: versions {versions.dtype}{list(versions.shape)}, expected uint32[{len(keys)}]")


def checked_rows(table: Table, keys: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Returns float32[U, width] of rows, or changes of rows, in the table's form.

    Raises UserError unless there is one finite row per key, and no key is 0.
    """
    name, form = table.config.name, table.config.form
    shape = [len(keys), form.lanes]
    if stored.dtype != np.float32 or list(stored.shape) != shape:
        raise UserError(f"table {name}: rows {stored.dtype}{list(stored.shape)}, expected float32{shape}")
    rows = form.decode(stored)
    if len(keys) and not keys.all():
        raise UserError(f"table {name}: a change of the key 0, which stands for no value and has no row; leave it out")
    refuse_not_finite(keys, rows, f"table {name}: the change")
    return rows


def newer(table: Table, versions: Versions, keys: np.ndarray, known: np.ndarray | None) -> ChangedRows:
    """Finds the rows whose version differs from the caller's.

    Args:
      keys: int64[U], distinct.
      known: uint32[U], the versions that the caller has; None if it has none.
    """
    slots = table.find(keys)
    if known is None:
        known = np.full(len(slots), NONE_KNOWN, np.uint32)
    new_versions, positions = np.empty(len(slots), np.uint32), np.empty(len(slots), np.int64)
    count = differing_versions(versions.reserve(len(table.keys)), slots, known, new_versions, positions)
    positions = positions[:count]
    rows = table.take(slots[positions])
    absent = np.flatnonzero(slots[positions] < 0)
    if len(absent):
        rows[absent] = table.initial_rows(keys[positions[absent]])
    return ChangedRows(new_versions, positions, rows)


def merge_changes(
    table: Table, versions: Versions, keys: np.ndarray, deltas: np.ndarray, known: np.ndarray | None
) -> ChangedRows:
    """Adds float32[U, width] deltas to rows as one change; see `newer` for the arguments.

    Returns the rows whose version differed from the caller's, with their deltas added.
    """
    count = len(keys)
    number = versions.next()
    slots, there = table.find_or_create(keys), None
    known = np.full(count, NONE_KNOWN, np.uint32) if known is None else np.require(known, requirements=("C", "A"))
    if table.limits.may_refuse and slots.min(initial=0) < 0:
        there, refused = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        slots, known, deltas = slots[there], known[there], deltas[there]
    positions = np.empty(len(slots), np.int64)
    rows = np.empty((len(slots), table.config.width), np.float32)
    table.before_change(slots)
    current = versions.reserve(len(table.keys))
    with table.opened(slots) as (opened, places):
        changed = merge_rows(opened, places, current, slots, known, deltas, number, positions, rows)
    answer = ChangedRows(np.full(count, number, np.uint32), positions[:changed], rows[:changed])
    return answer if there is None else _with_refused(answer, there, refused, table.initial_rows(keys[refused]))


def _with_refused(answer: ChangedRows, there: np.ndarray, refused: np.ndarray, initial_rows: np.ndarray) -> ChangedRows:
    """Adds the refused keys, with their initial rows, to the `ChangedRows` for the keys at the positions `there`."""
    versions, positions = answer.versions, np.concatenate([there[answer.positions], refused])
    versions[refused] = ABSENT
    order = np.argsort(positions)
    return ChangedRows(versions, positions[order], np.concatenate([answer.rows, initial_rows])[order])


@dataclasses.dataclass(frozen=True)
class ChangedRows:
    """An answer without the rows that the caller already knows.

    Attributes:
      versions: uint32[U], the version of each requested key at the time of the answer.
      positions: int64[n], ascending: the positions, in the requested keys, of the rows that the caller neither knows
        nor can compute.
      rows: float32[n, width], the rows at these positions; a Store returns them in the table's form.
    """

    versions: np.ndarray
    positions: np.ndarray
    rows: np.ndarray

    def encoded(self, form: RowForm) -> ChangedRows:
        """Returns the same ChangedRows with rows in a table's form; rounds them as the table has rounded them."""
        return dataclasses.replace(self, rows=form.encode(self.rows))


class Versions(RowWatcher):
    """The version of each slot of a table: the number of the last put or sync that changed its row, 4 bytes per row.

    No number is used twice, even after a restore. So if a caller's version equals the current version, the row equals
    the caller's row bit by bit. This class is not thread-safe.
    """

    def __init__(self) -> None:
        self._array = GrowableArray(np.uint32)
        self._count = 0
        self._last = ABSENT

    @property
    def nbytes(self) -> int:
        return self._count * 4

    def next(self) -> int:
        """Returns the number of a new change; raises UserError if all 4 billion numbers are used."""
        if self._last + 1 == NONE_KNOWN:
            raise UserError(
                "a table has taken 4,294,967,294 changes, and row versions count no further: restart the service"
            )
        self._last += 1
        return self._last

    def mark(self, table: Table, slots: np.ndarray) -> None:
        """Gives the rows at `slots`, int64[U], the version of a new change; -1 is skipped."""
        self.reserve(len(table.keys))[slots[slots >= 0]] = self.next()

    def created(self, slots: np.ndarray, size: int) -> None:
        """Resets the slots, int64[U], whose new rows no client has."""
        self.reserve(size)[slots] = ABSENT

    def returned(self, slots: np.ndarray) -> None:
        self._array.array[slots] = self.next()

    def reserve(self, count: int) -> np.ndarray:
        """Returns the versions by slot, uint32[>= count]; ABSENT for a slot that no put or sync has changed."""
        self._array.reserve(count)
        self._count = max(self._count, count)
        return self._array.array

    def before_clear(self, table: WatchedTable) -> None:
        self._array.array[: self._count] = ABSENT
        self._count = 0
