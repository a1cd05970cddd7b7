"""Checks whether the arrays of a request fit its table."""

import numpy as np

from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.messages.divergence import diverged
from ctr_trainer.messages.errors import UserError


def check_versions(table, keys, versions):
    """Raises UserError if the versions are not one uint32 per key."""
    if versions.dtype != np.uint32 or versions.shape != keys.shape:
        raise UserError(f"table {table}: versions {versions.dtype}{list(versions.shape)}, expected uint32[{len(keys)}]")


def check_deltas(table, keys, deltas):
    """Raises UserError if the deltas are not one finite row of the table's width per key, or if a key is 0."""
    name, width = table.config.name, table.config.width
    if deltas.dtype != np.float32 or deltas.shape != (len(keys), width):
        raise UserError(
            f"table {name}: deltas {deltas.dtype}{list(deltas.shape)}, expected float32{[len(keys), width]}"
        )
    if len(keys) and not keys.all():
        raise UserError(f"table {name}: a push to the key 0, which stands for no value and has no row; leave it out")
    bad = row_kernels.first_not_finite(deltas)
    if bad >= 0:
        raise diverged(f"table {name}: the change of key {keys[bad]} is not finite")
