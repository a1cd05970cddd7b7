"""The rows of a table or of a store, by key."""

import numpy as np

from ctr_trainer.embedding.store.versions import ABSENT, NONE_KNOWN


def read(table, keys):
    """Returns float32[U, width], the rows of a table; a key without a row has its initial row."""
    slots = table.find(keys)
    rows = table.take(slots)
    rows[slots < 0] = table.initial_rows(keys[slots < 0])
    return rows


def pulled(store, table, keys, missing="initial"):
    """Returns float32[U, width], the rows in a store; a key without a row has its initial row, or zeros."""
    config = (getattr(store, "config", None) or store._config)(table)
    keys = np.asarray(keys, np.int64)
    found = store.pull(table, keys, np.full(len(keys), ABSENT if missing == "zeros" else NONE_KNOWN, np.uint32))
    rows = np.zeros((len(keys), config.width), np.float32)
    rows[found.positions] = config.form.decode(found.rows)
    return rows
