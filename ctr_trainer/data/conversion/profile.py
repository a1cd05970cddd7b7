"""Profiles the columns of a source from its first rows."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tqdm

from ctr_trainer.data import parquet, typed
from ctr_trainer.data.blocks import BadRows
from ctr_trainer.data.conversion import delimited, libsvm, tfrecord
from ctr_trainer.data.conversion.csv_header import see_form
from ctr_trainer.data.source import Input, list_files
from ctr_trainer.features import times
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.system.messages.errors import UserError, listed

NUMBER, TEXT, LIST, TIME, OTHER = "number", "text", "list", "time", "other"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_CODE = r"^[+-]?0\d"  # Digits that are a code instead of a number, such as 007.
_NULLS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "\\N", "?", "-")


@dataclasses.dataclass(frozen=True)
class Profile:
    """One column of the sample.

    Attributes:
      kind: NUMBER, TEXT, LIST, TIME, or OTHER, which features do not support.
      rows, present, distinct: numbers of sampled rows, rows with a value, and distinct values (0 for LIST and OTHER).
      values: the present values; a float64 array for NUMBER, otherwise an Arrow array.
      orders: for TIME, the orders of day and month in which its texts are dates; see `times.seen_orders`.
    """

    name: str
    kind: str
    rows: int
    present: int
    distinct: int
    values: Any
    orders: Sequence[str] = ("",)

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.kind == NUMBER and bool((self.values == np.round(self.values)).all())


def sample_csv(
    source: Input, rows: int, bad_rows: int, encoding: str, progress: bool = True
) -> tuple[list[Profile], CsvFormat, int]:
    """Profiles the first rows of delimited files.

    `csv_header.see_form` detects the form from the first file. A word such as NA represents a missing value if all
    other values of its column are numbers.

    Args:
      rows: approximate number of rows of the sample.
      bad_rows: number of unreadable rows that may be left out.
      encoding: see `CsvFormat`.
    """
    form, names = see_form(list_files(source)[0].path, encoding)
    if len(set(names)) < len(names):
        raise UserError(f"{source}: two columns have the same name; the header is {listed(names)}")
    left_out = BadRows(bad_rows)
    table = _first(
        (block.parse(left_out).table for block in delimited.blocks(list_files(source), form)), rows, progress
    )
    texts = [_utf8(column) for column in table.columns]
    if any(pc.sum(pc.starts_with(t, " ")).as_py() or 0 for t in texts):
        texts = [_emptied(pc.utf8_trim_whitespace(text)) for text in texts]
        form = dataclasses.replace(form, strip=True)
    nulls = sorted({null for text in texts for null in _nulls(text)})
    form = dataclasses.replace(form, null_values=("", *nulls))
    profiles = [_of_text(name.strip(), text, nulls) for name, text in zip(table.column_names, texts, strict=True)]
    return profiles, form, len(table)


def sample_parquet(source: Input, rows: int, progress: bool = True) -> tuple[list[Profile], int]:
    """Profiles the first rows of Parquet files, including partition columns in directory names."""

    def tables() -> Iterator[pa.Table]:
        for file in list_files(source):
            with parquet.open_file(file.path) as opened:
                names = [*opened.schema_arrow.names, *file.partitions]
                for batch in opened.iter_batches(min(rows, 50_000), use_threads=False):
                    yield file.complete(pa.Table.from_batches([batch]), names)

    table = _first(tables(), rows, progress)
    return [_of_type(name, table[name].combine_chunks()) for name in table.column_names], len(table)


def sample_tfrecord(source: Input, rows: int, bad_rows: int, progress: bool = True) -> tuple[list[Profile], int]:
    """Profiles the first records of TFRecord files. A feature with at most one value per record is single-valued."""
    table = _first(tfrecord.tables(list_files(source), BadRows(bad_rows, unit="row")), rows, progress)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    singles = {name: typed.only(values) for name, values in columns.items() if typed.is_list(values.type)}
    columns |= {name: values for name, (values, several) in singles.items() if several is None}
    return [_of_type(name, values) for name, values in columns.items()], len(table)


def _first(tables: Iterable[pa.Table], rows: int, progress: bool) -> pa.Table:
    """Concatenates the first tables that together have at least `rows` rows."""
    taken, count = [], 0
    hidden = not (progress and sys.stderr.isatty())
    with tqdm.tqdm(desc="reading a sample", unit=" rows", total=rows, disable=hidden) as bar:
        for table in tables:
            taken.append(table)
            count += len(table)
            bar.update(len(table))
            if count >= rows:
                break
    if not count:
        raise UserError("the input has no rows; a feature spec is inferred from rows")
    try:
        return pa.concat_tables(taken, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(
            f"a column has different types in the input's files: {error}; infer the spec from files with equal types"
        ) from error


def _utf8(column: pa.ChunkedArray) -> pa.Array:
    """Decodes bytes as text. The replacement character represents invalid UTF-8; it is no number or delimiter."""
    column = column.combine_chunks()
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode(errors="replace") for v in column.to_pylist()], pa.string())


def _emptied(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _nulls(text: pa.Array) -> list[str]:
    """Returns the words that represent missing values in a column of numbers; [] for any other column."""
    rest = text.drop_null().unique()
    words = rest.filter(pc.is_in(rest, pa.array(_NULLS)))
    rest = rest.filter(pc.invert(pc.is_in(rest, pa.array(_NULLS))))
    return words.to_pylist() if len(words) and len(rest) and _all(rest, _NUMBER) else []


def _all(values: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _of_text(name: str, text: pa.Array, nulls: list[str]) -> Profile:
    present = text.filter(pc.invert(pc.is_in(text, pa.array(nulls, pa.string())))).drop_null()
    distinct = present.unique()
    kind, values, orders = TEXT, present, times.seen_orders(distinct) if len(distinct) else []
    if len(distinct) and _all(distinct, _NUMBER) and not pc.any(pc.match_substring_regex(distinct, _CODE)).as_py():
        kind, values = NUMBER, present.cast(pa.float64()).to_numpy(zero_copy_only=False)
    elif orders:
        kind = TIME
    return Profile(name, kind, len(text), len(present), len(distinct), values, orders or ("",))


def _of_type(name: str, values: pa.Array) -> Profile:
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    rows, values = len(values), values.drop_null()
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or typed.is_number(kind):
        numbers = values.cast(pa.int8() if pa.types.is_boolean(kind) else kind).cast(pa.float64(), safe=False)
        numbers = numbers.to_numpy(zero_copy_only=False)
        numbers = numbers[~np.isnan(numbers)]
        return Profile(name, NUMBER, rows, len(numbers), len(np.unique(numbers)), numbers)
    if typed.is_list(kind):
        values = values.cast(pa.list_(kind.value_type))
        elements = kind.value_type
        whole = typed.is_text(elements) or pa.types.is_integer(elements) or pa.types.is_dictionary(elements)
        present = int((pc.list_value_length(values).to_numpy(zero_copy_only=False) > 0).sum())
        return Profile(name, LIST if whole else OTHER, rows, present, 0, values)
    if pa.types.is_temporal(kind):
        return Profile(name, TIME, rows, len(values), len(values.unique()), values)
    if typed.is_text(kind):
        text = _utf8(pa.chunked_array([values.cast(pa.binary())]))
        distinct = text.unique()
        orders = times.seen_orders(distinct) if len(distinct) else []
        return Profile(name, TIME if orders else TEXT, rows, len(text), len(distinct), text, orders)
    return Profile(name, OTHER, rows, len(values), 0, values)


@dataclasses.dataclass
class SampledField:
    """One field of the sample. In the `libsvm` format, all indices belong to one field.

    Attributes:
      column: name of the field's column in a Chunk.
      most: largest number of indices of the field in one line.
      ones: whether the value of every index is 1.
    """

    column: str
    most: int = 0
    ones: bool = True


def sample_fields(source: Input, format: str, rows: int, bad_rows: int) -> tuple[Profile, list[SampledField], int]:
    """Profiles the labels and the fields in the first lines of `libsvm` or `libffm` files, and counts the lines."""
    labels: list[np.ndarray] = []
    fields: dict[int, SampledField] = {}
    count, bad = 0, BadRows(bad_rows)
    pattern = libsvm.OF_FIELD if format == "libffm" else libsvm.WEIGHTED
    blocks = (lines for file in list_files(source) for lines, _ in libsvm.good_lines(file.path, pattern, bad))
    for lines in blocks:
        tokens, owner = libsvm.tokens_of(lines)
        weighted = pc.match_substring_regex(tokens, rf"^{pattern}$").to_numpy(zero_copy_only=False)
        first = np.searchsorted(owner, np.arange(len(lines)))  # The first token of each line is its label.
        labels.append(tokens.take(pa.array(first)).cast(pa.float64()).to_numpy())
        _add(fields, tokens.filter(pa.array(weighted)), owner[weighted], format == "libffm")
        count += len(lines)
        if count >= rows:
            break
    if not count:
        raise UserError("the input has no rows; a feature spec is inferred from rows")
    values = np.concatenate(labels)
    label = Profile(libsvm.LABEL, NUMBER, len(values), len(values), len(np.unique(values)), values)
    return label, [fields[name] for name in sorted(fields)], count


def _add(fields: dict[int, SampledField], tokens: pa.Array, owner: np.ndarray, has_fields: bool) -> None:
    """Updates `fields`, a dict of field number -> SampledField, with the tokens."""
    names = np.zeros(len(tokens), np.int64)
    if has_fields:
        names = pc.list_element(pc.split_pattern(tokens, ":", max_splits=1), 0).cast(pa.int64()).to_numpy()
    values = pc.replace_substring_regex(tokens, "^.*:", "").cast(pa.float64()).to_numpy()
    for name in np.unique(names):
        of = names == name
        column = f"{libsvm.FIELD}{name}" if has_fields else libsvm.FEATURES
        field = fields.setdefault(int(name), SampledField(column))
        field.most = max(field.most, int(np.unique(owner[of], return_counts=True)[1].max()))
        field.ones &= bool((values[of] == 1).all())
