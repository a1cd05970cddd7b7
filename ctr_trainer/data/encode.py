"""Source columns to a data set's columns: keys, numbers and labels, with bad rows found and named."""

import concurrent.futures

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.errors import UserError
from ctr_trainer.features.hashing import keys

# What is kept under its own name beside the features, which may have that name too.
ID_PREFIX = "id:"
TIME = "time:"


class Encoder:
    """Encodes chunks of one conversion.

    The encoded table has, in this order: a column by dense feature (float32, NaN where missing), a column by sparse
    feature (int64, or list<int64> for a bag), `label` (float32, 0 or 1), `weight` (float32) where the spec has one,
    and the id columns as they are, named `id:<column>`.

    Args:
      spec: FeatureSpec.
      bad_rows: BadRows, told of each row that is left out.
      time: source column that a split goes by, kept as float64 in the column `TIME`; None for none.
      threads: how many columns are encoded at a time.
    """

    def __init__(self, spec, bad_rows, time=None, threads=2):
        self._spec, self._bad_rows, self._time = spec, bad_rows, time
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)

    def close(self):
        self._pool.shutdown()

    def check_columns(self, names, file):
        """Raises UserError where the spec wants a column that the source does not have."""
        spec = self._spec
        wanted = [(f.column, f"feature {f.name!r}") for f in (*spec.dense, *spec.sparse)]
        wanted += [(spec.label.column, "the label"), *((column, "'ids'") for column in spec.ids)]
        wanted += [(spec.weight, "the weight")] if spec.weight else []
        wanted += [(self._time, "the split by time")] if self._time else []
        for column, why in wanted:
            if column not in names:
                raise UserError(
                    f"{file}: no column {column!r}, which is wanted for {why} (feature spec {spec.name!r}); "
                    f"the columns are {', '.join(names)}"
                )

    def encode(self, chunk):
        """-> the encoded table of a Chunk's good rows."""
        spec, table = self._spec, chunk.table
        jobs = {f.name: (_dense, table[f.column]) for f in spec.dense}
        jobs |= {f.name: (_single if f.combiner is None else _bag, table[f.column], f) for f in spec.sparse}
        jobs["label"] = (_label, table[spec.label.column], spec.label, spec.csv.label_suffix)
        if spec.weight:
            jobs["weight"] = (_weight, table[spec.weight])
        jobs |= {ID_PREFIX + c: (_id, table[c]) for c in spec.ids}
        if self._time:
            jobs[TIME] = (_time, table[self._time])
        futures = {name: self._pool.submit(*job) for name, job in jobs.items()}
        columns, good = {}, np.ones(len(table), bool)
        sources = {f.name: f.column for f in (*spec.dense, *spec.sparse)}
        sources |= {"label": spec.label.column, "weight": spec.weight, TIME: self._time}
        for name, future in futures.items():
            columns[name], bad, expected = future.result()
            for row in np.flatnonzero(bad & good) if bad is not None else ():
                good[row] = False
                column = sources.get(name, name.removeprefix(ID_PREFIX))
                value = table[column][int(row)].as_py()
                value = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
                self._bad_rows.add(chunk.file, chunk.line_of(int(row)), column, value, expected)
        encoded = pa.table(columns)
        return encoded if good.all() else encoded.filter(pa.array(good))


# Each of the functions below returns (column, bool[n] of the rows that are bad or None, what was expected of them).


def _dense(values):
    numbers, bad = _numbers(values, pa.float32())
    return numbers, bad, "a finite number"


def _single(values, feature):
    return pa.array(keys(feature.slot, values)), None, ""


def _bag(values, feature):
    values = _one(values).dictionary_encode()
    lists = pc.split_pattern(values.dictionary, feature.separator)
    flat, owner = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    there = pc.binary_length(flat).to_numpy() > 0  # "A||B" has two values and "" has none
    flat, owner = flat.filter(pa.array(there)), owner[there]
    if feature.max_length:
        kept = np.arange(len(owner)) - np.searchsorted(owner, owner) < feature.max_length
        flat, owner = flat.filter(pa.array(kept)), owner[kept]
    # One more list, empty, for the missing values.
    splits = np.searchsorted(owner, np.arange(len(lists) + 2)).astype(np.int32)
    bags = pa.ListArray.from_arrays(pa.array(splits), pa.array(keys(feature.slot, flat)))
    return bags.take(values.indices.fill_null(len(lists))), None, ""


def _label(values, label, suffix):
    values, bad = _text(values)
    if suffix:
        values = pc.if_else(pc.ends_with(values, suffix), pc.utf8_slice_codeunits(values, 0, -len(suffix)), values)
    if label.positive is not None:
        labels = pc.equal(values, label.positive).fill_null(False)
        return (
            labels.cast(pa.float32()),
            _any(bad, values.is_null().to_numpy(zero_copy_only=False)),
            "a label (UTF-8 text)",
        )
    numbers, bad = _numbers(values, pa.float64())
    numbers = numbers.to_numpy(zero_copy_only=False)
    if label.threshold is not None:
        labels, wrong = numbers >= label.threshold, np.isnan(numbers)
        expected = f"a number, to compare with {label.threshold:g}"
    else:
        labels, wrong = numbers == 1, ~np.isin(numbers, (0, 1))
        expected = "a label of 0 or 1"
    return pa.array(labels.astype(np.float32)), _any(bad, wrong), expected


def _weight(values):
    numbers, bad = _numbers(values, pa.float32())
    return numbers, _any(bad, ~(numbers.to_numpy(zero_copy_only=False) >= 0)), "a weight of at least 0"


def _time(values):
    numbers, bad = _numbers(values, pa.float64())
    return numbers, _any(bad, np.isnan(numbers.to_numpy(zero_copy_only=False))), "a number, to split by"


def _id(values):
    values, bad = _text(values) if _is_text(values.type) else (_one(values), None)
    return values, bad, "UTF-8 text"


def _numbers(values, kind):
    """-> (float array, NaN where missing or bad; bool[n] of what is neither missing nor a finite number, or None)."""
    values = _one(values)
    try:
        numbers = (values.cast(pa.string()) if pa.types.is_binary(values.type) else values).cast(kind)
    except pa.ArrowInvalid:
        numbers = _numbers_one_by_one(values.dictionary_encode(), kind)
    bad = np.isinf(numbers.fill_null(np.nan).to_numpy(zero_copy_only=False))
    if numbers.null_count > values.null_count:
        bad |= pc.and_(values.is_valid(), numbers.is_null()).to_numpy(zero_copy_only=False)
    return numbers.fill_null(np.nan), bad if bad.any() else None


def _numbers_one_by_one(values, kind):
    """Casts each distinct value alone; null where that fails."""

    def cast(value):
        try:
            return pa.array([value]).cast(pa.string()).cast(kind)[0].as_py()
        except pa.ArrowInvalid:
            return None

    return pa.array([cast(v) for v in values.dictionary.to_pylist()], kind).take(values.indices)


def _text(values):
    """-> (string array, null where missing or bad; bool[n] of what is not UTF-8, or None)."""
    values = _one(values)
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        bad = np.array([v is not None and not _is_utf8(v) for v in values.to_pylist()])
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values).cast(pa.string()), bad


def _is_text(kind):
    return pa.types.is_binary(kind) or pa.types.is_string(kind)


def _is_utf8(value):
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one(values):
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _any(bad, wrong):
    """The union of two masks; None where it is empty."""
    wrong = wrong if bad is None else bad | wrong
    return wrong if wrong.any() else None
