"""Reads the first rows of a source as columns of numbers, texts, lists or times."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import encoders, typed
from ctr_trainer.data.blocks import BadRow, BadRows, Block
from ctr_trainer.data.conversion import delimited, libsvm
from ctr_trainer.data.conversion.convert import SOURCES, bad_rows_of
from ctr_trainer.data.conversion.csv_header import see_form
from ctr_trainer.data.source import Input, list_files
from ctr_trainer.features import times
from ctr_trainer.features.columns import CsvFormat, SparseFeature
from ctr_trainer.system.messages.errors import UserError, listed

NUMBER, TEXT, LIST, TIME, OTHER = "number", "text", "list", "time", "other"
_ROWS = 200_000
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_CODE = r"^[+-]?0\d"  # Digits that are a code instead of a number, such as 007.
_NULLS = pa.array(("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "\\N", "?", "-"))
_SEPARATORS, _SEPARATED = "|;,^ ", 0.2  # The least share of the values that contain the separator.
_IN_BRACKETS, _MOST = r"^\s*\[.*\]\s*$|^\s*\(.*\)\s*$|^\s*\{.*\}\s*$", 0.95
_NUMBERED = r"^[A-Za-z_-]{0,4}\d+$"  # Values such as 17 or i17 that blanks separate are a list; words are a text.
_TITLES = 30  # Fewer texts of several words than this are categories, such as `Home and garden`.


class Column:
    """One column of the sample: one value per row, null if missing.

    Its values are float64 for NUMBER, strings for TEXT, and lists for LIST, whose `options` are those of a feature that
    reads them, such as `separator`. OTHER is not supported by features. For TIME, `orders` are the orders of day and
    month in which its texts are dates; see `times.seen_orders`.

    Attributes:
      present: whether each row has a value, bool[n]; `missing` describes the share of the other rows.
      distinct: the distinct values; none for lists.
      codes: the number of each row's value in `distinct`, int64[n]; a missing value has the next number.
      numbers: the values of a column of numbers, float64[n], NaN if missing.
      is_whole: whether all values are whole numbers.
      lists: the rows of the values of all lists, int64[m], and these values as bytes.
    """

    def __init__(
        self, name: str, kind: str, values: pa.Array, orders: Sequence[str] = ("",), options: Mapping[str, Any] = {}
    ) -> None:
        self.name, self.kind, self.values, self.orders, self.options = name, kind, values, orders, options
        self.present = values.is_valid().to_numpy(zero_copy_only=False)
        share = 1 - self.present.mean()
        self.missing = f"missing in {share:.1%}" if share else "never missing"
        self.distinct = pa.array([]) if kind in (LIST, OTHER) else values.drop_null().unique()
        if kind in (NUMBER, TEXT):
            codes = pc.index_in(values, self.distinct).fill_null(len(self.distinct))
            self.codes = codes.to_numpy().astype(np.int64)
        if kind == NUMBER:
            self.numbers = values.fill_null(np.nan).to_numpy()
        self.is_whole = kind == NUMBER and bool(pc.all(pc.equal(self.distinct, pc.round(self.distinct))).as_py())
        if kind == LIST:
            owner, held = pc.list_parent_indices(values), typed.bytes_of(values.flatten())
            filled = pc.greater(pc.binary_length(held), 0).fill_null(False)
            self.lists = owner.filter(filled).to_numpy(), held.filter(filled)

    def where(self, rows: np.ndarray) -> "Column":
        """Returns the column of some rows, bool[n]."""
        return Column(self.name, self.kind, self.values.filter(pa.array(rows)), self.orders, self.options)


def read_sample(source: Input, format: str, bad_rows: int, encoding: str) -> tuple[dict[str, Column], CsvFormat]:
    """Returns the columns of the first 200,000 rows by name, and the form of delimited text.

    `csv_header.see_form` detects the form from the first file. A word such as NA represents a missing value if all
    other values of its column are numbers. At most `bad_rows` unreadable rows may be left out.
    """
    files, is_csv, form = list_files(source), format == "csv", CsvFormat()
    if is_csv:
        form = see_form(files[0].path, encoding)[0]
    blocks = delimited.blocks(files, form) if is_csv else SOURCES[format](files, None, None)
    table = _first(blocks, bad_rows_of(format, bad_rows))
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    if is_csv:
        columns = {name.strip(): _texts(values) for name, values in columns.items()}
        if any(pc.any(pc.starts_with(text, " ")).as_py() for text in columns.values()):
            columns = {name: _texts(pc.utf8_trim_whitespace(text)) for name, text in columns.items()}
            form = dataclasses.replace(form, strip=True)
        nulls = sorted({null for text in columns.values() for null in _nulls(text)})
        form = dataclasses.replace(form, null_values=("", *nulls))
        columns = {n: _emptied(text, pc.is_in(text, pa.array(nulls, pa.string()))) for n, text in columns.items()}
    if format == "tfrecord":  # A feature without several values in any record is no list.
        singles = {name: typed.only(values) for name, values in columns.items() if typed.is_list(values.type)}
        columns |= {name: only for name, (only, several) in singles.items() if several is None}
    make = _of_indices if format in ("libsvm", "libffm") else _column
    return {name: make(name, values) for name, values in columns.items()}, form


def _first(blocks: Iterable[Block], bad_rows: BadRows) -> pa.Table:
    """Concatenates the first blocks that together have at least `_ROWS` rows."""
    taken, rows = [], 0
    for block in blocks:
        found: list[BadRow] = []
        taken.append(block(found).table)
        bad_rows.add(found)
        rows += len(taken[-1])
        if rows >= _ROWS:
            break
    if not rows:
        raise UserError("the input has no rows; a feature spec is inferred from rows")
    names = [name.strip() for name in taken[0].column_names]
    if len({*names}) < len(names):
        raise UserError(f"two columns have the same name; the names are {listed(names)}")
    try:
        return pa.concat_tables(taken, promote_options="permissive").slice(0, _ROWS)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(
            f"a column has different types in the input's files: {error}; infer the spec from files with equal types"
        ) from error


def _column(name: str, values: pa.Array) -> Column:
    values = typed.decoded(values)
    kind = values.type
    if typed.is_list(kind):
        held = kind.value_type
        is_supported = typed.is_text(held) or pa.types.is_integer(held) or pa.types.is_dictionary(held)
        values = _emptied(values.cast(pa.list_(typed.without_views(held))), pc.equal(pc.list_value_length(values), 0))
        return Column(name, LIST if is_supported else OTHER, values)
    is_numeric = pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind)
    if is_numeric or typed.is_number(kind):
        numbers = typed.as_number(values).cast(pa.float64(), safe=False)
        return Column(name, NUMBER, _emptied(numbers, pc.invert(pc.is_finite(numbers))))
    if not typed.is_text(kind):
        return Column(name, TIME if pa.types.is_temporal(kind) else OTHER, values)
    text = _texts(values)
    distinct = text.drop_null().unique()
    if _all(distinct, _NUMBER) and not pc.any(pc.match_substring_regex(distinct, _CODE)).as_py():
        return Column(name, NUMBER, text.cast(pa.float64()))
    if len(distinct) and (orders := times.seen_orders(distinct)):
        return Column(name, TIME, text, orders)
    options = _separated(distinct) if len(distinct) else None
    if options is None:
        return Column(name, TEXT, text)
    feature = SparseFeature(name, name, 1, "", "sum", **options)
    return Column(name, LIST, encoders.split(text.cast(pa.binary()), feature), options=options)


def _of_indices(name: str, values: pa.Array) -> Column:
    """Returns a column of `libsvm` or `libffm`. A field with at most one index per line, of value 1, becomes texts."""
    if name == libsvm.LABEL:
        return _column(name, values)
    only, several = typed.only(values)
    weights = pc.replace_substring_regex(only, "^.*:", "").cast(pa.float64())
    if name != libsvm.FEATURES and several is None and pc.all(pc.equal(weights, 1.0)).as_py():
        return Column(name, TEXT, pc.replace_substring_regex(only, ":[^:]*$", ""))
    values = _emptied(values, pc.equal(pc.list_value_length(values), 0))
    return Column(name, LIST, values, options={"weight_separator": ":"})


def _separated(texts: pa.Array) -> dict[str, Any] | None:
    """Returns the feature options that describe the lists in distinct texts; None if the texts are no lists."""
    contain = {s: _share(pc.match_substring(texts, s)) for s in _SEPARATORS}
    if _share(pc.match_substring_regex(texts, _IN_BRACKETS)) > _MOST:
        # A blank often follows another separator, so it is tried last.
        separator = next((s for s in ",;| " if contain[s] > _SEPARATED / 4), ",")
        return {"brackets": True} | ({} if separator == "," else {"separator": separator})
    for separator in _SEPARATORS:
        parts = pc.split_pattern(texts, separator).flatten()
        if contain[separator] < _SEPARATED or len(parts.unique()) > 0.5 * len(parts):
            continue
        are_words = len(texts) >= _TITLES and contain[separator] > 0.5
        if separator != " " or are_words or _share(pc.match_substring_regex(parts, _NUMBERED)) >= _MOST:
            return {"separator": separator}
    return None


def _share(matches: pa.Array) -> float:
    return float(pc.mean(matches).as_py())


def _texts(values: pa.Array) -> pa.Array:
    """Decodes bytes as text, null if empty or not UTF-8."""
    text = encoders.text(values.cast(pa.binary()))[0]
    return _emptied(text, pc.equal(text, ""))


def _emptied(values: pa.Array, empty: pa.Array) -> pa.Array:
    """Makes some values null."""
    return pc.if_else(empty.fill_null(True), pa.scalar(None, values.type), values)


def _nulls(text: pa.Array) -> list[str]:
    """Returns the words that represent missing values in a column of numbers; [] for any other column."""
    found = text.drop_null().unique()
    is_null = pc.is_in(found, _NULLS)
    return found.filter(is_null).to_pylist() if _all(found.filter(pc.invert(is_null)), _NUMBER) else []


def _all(values: pa.Array, pattern: str) -> bool:
    return len(values) > 0 and bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())
