"""Detects the form of delimited text from its first lines, and whether the first line is a header or a row."""

import contextlib
import csv
import itertools
import re
from collections.abc import Sequence, Sized
from typing import Any

import pyarrow as pa

from ctr_trainer.data.conversion.text_blocks import text_blocks
from ctr_trainer.data.encoders import invalid_byte, numbers
from ctr_trainer.data.typed import Use
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.system.messages.errors import UserError, cut, listed

_DELIMITERS = ",\t;|\x01"
_SAY_HEADER = "set `header = true` in [csv] of a feature spec for format csv"
_TRIED, _BLANK = ",\t;|", " "
_LINES = 50
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def names_of(file: str, line: bytes, form: CsvFormat, wanted: dict[str, Use]) -> tuple[tuple[str, ...], str]:
    """Returns (names of a file's columns by its first line, advice for the message about a bad first row).

    Columns that must be numbers, by their `typed.Use`, distinguish a row from a header. Raises UserError if the header
    cannot be read, or if the first line contradicts `form.header`.
    """
    where, fields = f"{file}, line 1", fields_of(file, line, form)
    if not form.columns and (invalid := invalid_byte(pa.scalar(line))):
        raise UserError(f"{where}: cannot be read as the header{invalid}")
    names = tuple(form.columns) or _header(fields, form, where)
    hint = _delimiter_hint(line.decode(errors="replace"), form, fields, names)
    found = [field.strip() for field in fields]
    if not form.header:
        if found == list(names):
            raise UserError(f"{where}: this line names the columns, so it is a header: {_SAY_HEADER}")
        hint += f"; if line 1 is a header, {_SAY_HEADER}"
    elif form.columns and sorted(found) == sorted(names) and found != list(names):
        raise UserError(
            f"{where}: the header has the names of `columns` in [csv] in another order: {listed(map(repr, found))}. "
            "Leave `columns` out, or write the file in their order"
        )
    elif form.columns and _is_row(fields, form, wanted):
        raise UserError(
            f"{where}: this line is a row, but `header = true` in [csv] makes it a header: "
            f"{cut(','.join(fields))}. Set `header = false`"
        )
    return names, hint


def fields_of(file: str, first_line: bytes, form: CsvFormat) -> list[str]:
    """Returns the fields of a file's first line. Raises UserError if a quote is not closed."""
    line = first_line.decode("utf-8-sig", "replace")
    try:
        return next(csv.reader([line], strict=True, **dialect(form)), [])
    except csv.Error as error:
        raise UserError(
            f'{file}, line 1: cannot be split into fields: {error}; with `quote = ""` in [csv], quotes have no special '
            f"meaning: {line[:200]!r}"
        ) from error


def dialect(form: CsvFormat) -> dict[str, Any]:
    """Returns the arguments of `csv.reader` for this form."""
    quoting = dict(quotechar=form.quote) if form.quote else dict(quoting=csv.QUOTE_NONE)
    return dict(delimiter=form.delimiter, **quoting)


def missing_hint(names: Sequence[str], form: CsvFormat, wanted: int) -> str:
    """Returns advice on [csv] for the message about a missing column; "" for no advice."""
    if len(names) == 1 and wanted > 1:
        return _delimiter_hint(names[0], form, names, range(wanted))
    if form.header and not form.columns and any(_is_number(name) or not name for name in names):
        return "; if its first line is a row, set `header = false` and `columns` in [csv]"
    return ""


def _header(fields: Sequence[str], form: CsvFormat, where: str) -> tuple[str, ...]:
    names = tuple(name.strip() if form.strip else name for name in fields)
    if not any(names):
        raise UserError(f"{where}: the line is empty, expected a header that names the columns")
    return names


def _is_row(fields: Sequence[str], form: CsvFormat, wanted: dict[str, Use]) -> bool:
    """Whether some fields must be numbers, and all of these are numbers or missing."""
    numbered_names = [[str(number) for number in range(first, first + len(fields))] for first in (0, 1)]
    if len(fields) != len(form.columns) or [f.strip() for f in fields] in numbered_names:
        return False  # A header of pandas, which numbers unnamed columns.
    numbered = [name for name, use in wanted.items() if use.number]
    values = [field.strip() for field, name in zip(fields, form.columns, strict=True) if name in numbered]
    present = [value for value in values if value not in form.null_values]
    return bool(present) and all(map(_is_number, present))


def _is_number(text: str) -> bool:
    return numbers(pa.array([text.strip()]), pa.float64())[1] is None


def _delimiter_hint(line: str, form: CsvFormat, fields: Sequence[str], names: Sized) -> str:
    if len(fields) > 1 or len(names) < 2:
        return ""
    other = max(_DELIMITERS, key=line.count)
    would = f"; {other!r} would make {line.count(other) + 1} columns" if line.count(other) else ""
    return f"; the whole line is one column, because `delimiter` in [csv] is {form.delimiter!r}{would}"


def see_form(file: str, encoding: str = "utf-8") -> tuple[CsvFormat, list[str]]:
    """Detects the CsvFormat of a file and its column names: the fields of the header, or c1, c2 ... without a header.

    The delimiter is the character among `, tab ; |` that splits each of the first lines into the same number of fields,
    at least two. If several characters do, the character with the most fields is chosen. A blank is chosen only if it
    gives at least twice as many fields, because texts contain blanks, too; a comma may only separate the values of
    lists. If no character splits all lines equally, the most frequent one in the first line is chosen.

    The first line is a header unless one of its fields is a number or empty. Only the first field may be empty, above a
    whole number: pandas writes the column of row numbers in this way.
    """
    lines = _first_lines(file, CsvFormat(encoding=encoding).encoding)
    delimiter = max(_TRIED, key=lambda d: _fields(lines, d))
    fields, first = _fields(lines, delimiter), (lines or [""])[0]
    if _fields(lines, _BLANK) >= max(2 * fields, 2):
        delimiter = _BLANK
    elif not fields:
        delimiter = max(_TRIED + _BLANK if not set(_TRIED) & set(first) else _TRIED, key=first.count)
    rows = list(csv.reader(lines[:2], delimiter=delimiter, skipinitialspace=True))
    names = [name.strip() for name in rows[0]] if rows else []
    header = bool(names) and all(name and not _PLAIN.fullmatch(name) for name in names[1:])
    if header and not names[0]:
        header = len(names) > 1 and len(rows) > 1 and rows[1][0].strip().isdigit()
    elif header:
        header = not _PLAIN.fullmatch(names[0])
    names = names if header else [f"c{number}" for number in range(1, len(names) + 1)]
    columns = () if header else tuple(names)
    return CsvFormat(delimiter=delimiter, header=header, columns=columns, encoding=encoding), names


def _first_lines(file: str, encoding: str) -> list[str]:
    """Returns the first lines that are not empty."""
    with contextlib.closing(text_blocks(file, encoding)) as blocks:
        text = b"".join(itertools.islice(blocks, 2))  # A last line without an end is a block of its own.
    lines = text.split(b"\n", 2 * _LINES)[: 2 * _LINES]
    return [line.rstrip(b"\r").decode(errors="replace") for line in lines if line.strip()][:_LINES]


def _fields(lines: list[str], delimiter: str) -> int:
    """Returns the number of fields per line if all lines have the same number, at least two; otherwise 0."""
    counts = {len(row) for row in csv.reader(lines, delimiter=delimiter)}
    return counts.pop() if len(counts) == 1 and min(counts) > 1 else 0
