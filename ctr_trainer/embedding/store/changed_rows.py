"""What a table answers to who knows some of its rows already."""

import numpy as np

from ctr_trainer.embedding.store import version_kernels
from ctr_trainer.embedding.store.versions import ABSENT, NONE_KNOWN, ChangedRows


def newer(table, versions, keys, known):
    """-> `ChangedRows` of the rows that are not as known.

    Args:
      table: `Table`.
      versions: its `Versions`.
      keys: int64[U], distinct.
      known: uint32[U], the versions that the asker has; None where it has none.
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
    """Adds deltas to rows, as one push. -> `ChangedRows` of the rows that were not as known, after that

    Args:
      table, versions, keys, known: as for `newer`.
      deltas: float32[U, width].
    """
    count = len(keys)
    number = versions.next()
    slots, there = table.find_or_make(keys), None
    known = np.full(count, NONE_KNOWN, np.uint32) if known is None else np.require(known, requirements=("C", "A"))
    if table.is_limited and slots.min(initial=0) < 0:
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
    """-> `ChangedRows` for all keys, from that of the keys `there`: a key that was refused has its initial row."""
    versions, positions = answer.versions, np.concatenate([there[answer.positions], refused])
    versions[refused] = ABSENT
    order = np.argsort(positions)
    return ChangedRows(versions, positions[order], np.concatenate([answer.rows, initial_rows])[order])
