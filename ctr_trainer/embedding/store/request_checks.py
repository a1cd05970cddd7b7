"""Checks whether the arrays of a request fit its table."""

import numpy as np

from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.messages.errors import UserError, diverged


def check_versions(table, keys, versions):
    """Raises UserError if the versions are not one uint32 per key."""
    if versions.dtype != np.uint32 or versions.shape != keys.shape:
        raise UserError(f"table {table}: versions {versions.dtype}{list(versions.shape)}, expected uint32[{len(keys)}]")


def check_rows(table, keys, rows):
    """Raises UserError if rows, or changes, are not one finite row of the table's width per key, or if a key is 0."""
    name, width = table.config.name, table.config.width
    if rows.dtype != np.float32 or rows.shape != (len(keys), width):
        raise UserError(f"table {name}: rows {rows.dtype}{list(rows.shape)}, expected float32{[len(keys), width]}")
    if len(keys) and not keys.all():
        raise UserError(f"table {name}: a push to the key 0, which stands for no value and has no row; leave it out")
    bad = row_kernels.first_not_finite(rows)
    if bad >= 0:
        raise diverged(f"table {name}: the change of key {keys[bad]} is not finite")


def check_unlimited(table):
    """Raises UserError if the table's limits say which keys have rows."""
    if table.config.has_limits:
        raise UserError(f"table {table.config.name}: a put to a table with limits; push changes")
