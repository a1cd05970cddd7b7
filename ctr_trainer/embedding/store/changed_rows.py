"""A table's answer to an asker that already knows some of its rows."""

import numpy as np

from ctr_trainer.embedding.store import version_kernels
from ctr_trainer.embedding.store.versions import ABSENT, NONE_KNOWN, ChangedRows


def newer(table, versions, keys, known):
    """Finds the rows whose version is not the one that the asker knows.

    Args:
      table: `Table`.
      versions: the table's `Versions`.
      keys: int64[U], distinct.
      known: uint32[U], the versions that the asker has; None if it has none.

    Returns:
      `ChangedRows`.
    """
    slots = table.find(keys)
    versions.reserve(len(table.keys))
    new_versions, positions = versions.differ(slots, known)
    rows = table.take(slots[positions])
    absent = np.flatnonzero(slots[positions] < 0)
    if len(absent):
        rows[absent] = table.initial_rows(keys[positions[absent]])
    return ChangedRows(new_versions, positions, rows)


def merge(table, versions, keys, deltas, known):
    """Adds deltas to rows, as one push.

    Args:
      table, versions, keys, known: as for `newer`.
      deltas: float32[U, width].

    Returns:
      `ChangedRows`: the rows whose version was not the one that the asker knew, with their deltas added.
    """
    count = len(keys)
    number = versions.next()
    slots, there = table.find_or_make(keys), None
    known = np.full(count, NONE_KNOWN, np.uint32) if known is None else np.require(known, requirements=("C", "A"))
    if table.limits.may_refuse and slots.min(initial=0) < 0:
        there, refused = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        slots, known, deltas = slots[there], known[there], deltas[there]
    positions = np.empty(len(slots), np.int64)
    rows = np.empty((len(slots), table.config.width), np.float32)
    table.before_change(slots)
    current = versions.reserve(len(table.keys))
    changed = version_kernels.merge(table.rows, current, slots, known, deltas, number, positions, rows)
    answer = ChangedRows(np.full(count, number, np.uint32), positions[:changed], rows[:changed])
    return answer if there is None else _with_refused(answer, there, refused, table.initial_rows(keys[refused]))


def _with_refused(answer, there, refused, initial_rows):
    """-> the `ChangedRows` of all keys, from the `answer` for the keys `there`; a refused key has its initial row."""
    versions, positions = answer.versions, np.concatenate([there[answer.positions], refused])
    versions[refused] = ABSENT
    order = np.argsort(positions)
    return ChangedRows(versions, positions[order], np.concatenate([answer.rows, initial_rows])[order])
