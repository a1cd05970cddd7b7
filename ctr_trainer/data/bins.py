"""Bins of a column: its most frequent values, or ranges of its numbers; then other values, and the missing ones."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.statistics import Quantiles
from ctr_trainer.features import hashing
from ctr_trainer.features.spec import FeatureSpec

_FEW = 20  # So many numbers are values, of which each has a bin.


class Bins:
    """The `values` most frequent values of a column, or of more than 20 numbers the ranges between their quantiles.

    `column` is the result of `values_of`; `prefix` begins the `names` of values. Ranges are `ordered`.
    """

    def __init__(self, column: pa.Array, values: int, ranges: int, prefix: str = "") -> None:
        known, bounds = column.drop_null(), np.empty(0, np.float32)
        if pa.types.is_floating(column.type) and pc.count_distinct(known).as_py() > _FEW:
            quantiles = Quantiles(ranges)
            quantiles.add(known.to_numpy().astype(np.float32))
            bounds = quantiles.boundaries()
        counted = pc.value_counts(known.cast(pa.string()))
        order = np.argsort(-counted.field("counts").to_numpy(), kind="stable")[:values]
        self.ordered, self._bounds, self._texts = len(bounds) > 0, bounds, counted.field("values").take(order)
        names = [prefix + text for text in self._texts.to_pylist()]
        if self.ordered:
            inner = [f"{low:g} to below {high:g}" for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
            names = [f"below {bounds[0]:g}", *inner, f"from {bounds[-1]:g}"]
        self.names = [*names, "(other values)", "(missing)"]

    def numbers(self, column: pa.Array) -> np.ndarray:
        """Returns the number of the bin of each value, int64[n]."""
        last = len(self.names) - 1
        if self.ordered:
            found = np.searchsorted(self._bounds, column.to_numpy(zero_copy_only=False), side="right")
        else:
            texts = pc.index_in(column.cast(pa.string()), self._texts)
            found = texts.fill_null(last - 1).to_numpy().astype(np.int64)
        return np.where(column.is_null().to_numpy(zero_copy_only=False), last, found)


def values_of(table: pa.Table, spec: FeatureSpec, name: str) -> pa.Array:
    """Returns the values of a column of an encoded table; null if missing. An empty list has one missing value."""
    column = table[name].combine_chunks()
    if pa.types.is_list(column.type):
        empty = pc.sum(pc.equal(pc.list_value_length(column), 0)).as_py() or 0
        column = pa.concat_arrays([column.flatten(), pa.nulls(empty, pa.int64())])
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), None, column)
    slots = {f.name: f.slot for f in spec.sparse}
    if name in slots:
        missing = pa.array([0, *hashing.keys(slots[name], pa.array([""]))])
    else:
        column, missing = column.cast(pa.string()), pa.array([""])
    return pc.if_else(pc.is_in(column, missing), None, column)
