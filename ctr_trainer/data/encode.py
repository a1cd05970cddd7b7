"""Encodes source columns as keys, numbers and labels, and reports bad rows."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ctr_trainer.data import encoders, lookups
from ctr_trainer.data.blocks import ID_PREFIX, TIME, WEIGHT, WEIGHTS_PREFIX, BadRow, Chunk, Encoded, label_columns
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.typed import decoded, is_text
from ctr_trainer.features import times
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.hashing import Unhashed, keys_of_columns
from ctr_trainer.features.spec import FeatureSpec


class _Job(NamedTuple):
    """How to encode one column. `what` describes it for messages, such as `feature 'price'`."""

    column: str
    encode: Callable[[pa.Array], Encoded]
    what: str


class Encoder:
    """Encodes chunks of one conversion, whose columns have the types that `typed` makes. This class is thread-safe.

    The encoded table has these columns, in this order:

    - per dense feature, float32, NaN for a missing value;
    - per single-valued sparse feature, int64 keys, 0 for no value;
    - per bag or sequence, list<int64> keys; after a bag with weights, `weights:<feature>`, list<float32>;
    - per bucketised feature, the float32 number, because its boundaries may be unknown; NaN for a missing value;
    - if the spec is labelled, `label`, float32, 0 or 1; with several labels `label:<name>` per label;
    - if the spec has a weight, `weight`, float32;
    - per id column, `id:<column>`, with the values of the source, integers as int64 if these have all of their type.

    Sparse features of all kinds are in the order of the spec. The column `time` of a split is stored as float64 in the
    column `TIME`. Without `labels_needed`, a row without a valid label is not bad, and its label is NaN.
    """

    def __init__(self, spec: FeatureSpec, time: str | None = None, labels_needed: bool = True) -> None:
        jobs = {f.name: _Job(f.column, _number, f"feature {f.name!r}") for f in spec.dense}
        jobs |= {f.name: _Job(f.column, encoding(f, spec.csv.null_values), f"feature {f.name!r}") for f in spec.sparse}
        for name, label in label_columns(spec).items():
            encode = functools.partial(
                encoders.encode_label, label=label, suffix=spec.csv.label_suffix, is_needed=labels_needed
            )
            jobs[name] = _Job(label.column, encode, f"the label {label.name!r}" if spec.other_labels else "the label")
        if spec.weight:
            jobs[WEIGHT] = _Job(spec.weight, _weight, "the weight")
        jobs |= {ID_PREFIX + column: _Job(column, _id, "'ids'") for column in spec.ids}
        if time:
            orders = {times.order_of(f.derive) for f in spec.sparse if f.column == time and f.derive}
            encode = functools.partial(_time, order=max(orders, default=""))
            jobs[TIME] = _Job(time, encode, "the split by time")
        self._spec, self._jobs = spec, jobs

    def encode(self, chunk: Chunk, bad_rows: list[BadRow], observed: Observations) -> pa.Table:
        """Returns the encoded table of a Chunk's good rows.

        Each row that is left out is added to `bad_rows` of the same file, which are then sorted by line; the lengths
        and odd values of lists are added to `observed`.
        """
        table = lookups.joined(chunk.table, self._spec)
        columns: dict[str, pa.Array | Unhashed] = {}
        lengths: dict[str, np.ndarray] = {}
        good = np.ones(len(table), bool)
        for name, (column, encode, what) in self._jobs.items():
            encoded = encode(table[column].combine_chunks())
            columns[name] = encoded.column
            if encoded.lengths is not None:
                lengths[name] = encoded.lengths
                if encoded.odd is not None:
                    observed.odd.setdefault(name, (column, encoded.odd))
            if encoded.weights is not None:
                columns[WEIGHTS_PREFIX + name] = encoded.weights
            for row in np.flatnonzero(encoded.bad & good) if encoded.bad is not None else ():
                good[row] = False
                line, value = chunk.line_of(int(row)), table[column][int(row)]
                expected = f"{encoded.expected}, for {what}{encoders.invalid_byte(value) or encoded.cure}"
                expected += chunk.first_line_hint if line == 1 else ""
                bad_rows.append(BadRow(chunk.file, line, column, encoders.shown(value), expected))
        bad_rows.sort(key=lambda bad: bad.line or 0)
        for name, each in lengths.items():
            found, rows = np.unique(each[good], return_counts=True)
            observed.lengths[name].update(dict(zip(found.tolist(), rows.tolist(), strict=True)))
        whole = pa.table(hashed(columns))
        return whole if good.all() else whole.filter(pa.array(good))


def hashed(columns: Mapping[str, pa.Array | Unhashed]) -> dict[str, pa.Array]:
    """Returns the columns, with the keys of those that are still to be hashed. One call hashes all of them."""
    values = {name: column for name, column in columns.items() if isinstance(column, Unhashed)}
    keys = map(pa.array, keys_of_columns([*values.values()]) if values else ())
    return {**columns, **dict(zip(values, keys, strict=True))}


def encoding(feature: SparseFeature, null_values: Sequence[str] = ()) -> Callable[[pa.Array], Encoded]:
    """Returns f(column) -> `Encoded` of a sparse feature. For `null_values`, see `encoders.encode_list`."""
    if feature.combiner:
        return functools.partial(encoders.encode_list, feature=feature, null_values=null_values)
    return _number if feature.is_bucketised else functools.partial(_single, feature=feature)


def _number(values: pa.Array) -> Encoded:
    values = decoded(values)
    if _has_dates(values):
        seconds = np.where(times.is_date(values), times.seconds(values), np.nan)
        wrong = np.isnan(seconds) & values.is_valid().to_numpy(zero_copy_only=False)
        return Encoded(
            pa.array(seconds.astype(np.float32)), encoders.any_bad(None, wrong), "a date, as the first value"
        )
    column, bad = encoders.numbers(values, pa.float32())
    return Encoded(column, bad, "a finite number")


def _single(values: pa.Array, feature: SparseFeature) -> Encoded:
    if feature.derive:
        values, bad = times.derived(values, feature.derive)
        expected = times.expected(feature.derive)
    else:
        bad, expected = encoders.not_utf8(values), "UTF-8 text"
    return Encoded(Unhashed(feature.slot, values, feature.missing_has_row), bad, expected)


def _weight(values: pa.Array) -> Encoded:
    column, bad = encoders.numbers(values, pa.float32())
    wrong = ~(column.to_numpy(zero_copy_only=False) >= 0)
    return Encoded(column, encoders.any_bad(bad, wrong), "a weight of at least 0")


def _time(values: pa.Array, order: str) -> Encoded:
    values = times.year_first(decoded(values), order)
    if _has_dates(values):
        found, bad, expected = times.seconds(values), None, "a date such as 2024-01-31 08:30:00, to split by"
        column = pa.array(np.where(times.is_date(values), found, np.nan))
    else:
        column, bad = encoders.numbers(values, pa.float64())
        expected = "a number or a date such as 2024-01-31 08:30:00, to split by"
    return Encoded(column, encoders.any_bad(bad, np.isnan(column.to_numpy(zero_copy_only=False))), expected)


def _has_dates(values: pa.Array) -> bool:
    return is_text(values.type) and bool(times.is_date(values.drop_null().slice(0, 1)).any())


def _id(values: pa.Array) -> Encoded:
    if is_text(values.type):
        return Encoded(*encoders.text(values), "UTF-8 text")
    # Files may have integers of different sizes, but predictions have one type.
    is_small = pa.types.is_integer(values.type) and not pa.types.is_uint64(values.type)
    return Encoded(values.cast(pa.int64()) if is_small else values)
