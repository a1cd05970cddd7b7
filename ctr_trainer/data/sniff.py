"""Finds the form of a delimited file by its first lines."""

import csv
import re

from ctr_trainer.features.csv_format import CsvFormat
from ctr_trainer.files.paths import path_of

_DELIMITERS, _BLANK = ",\t;|", " "
_LINES, _BYTES = 50, 1 << 16
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def see_form(file):
    """-> (CsvFormat, names of the columns) of a file. The names are the header's fields, or c1, c2 ... without a
    header.

    The delimiter is the one of `, tab ; |` that gives all of the first lines the same number of fields, at least two.
    If several do, it is the one that gives the most fields. It is a blank if a blank gives twice as many fields: texts
    have blanks too, and lists have commas. If no delimiter fits all lines, it is the one that is most frequent in the
    first line.

    The first line is a header unless one of its fields is a number or empty. But its first field may be empty above a
    whole number: this is how pandas writes the column of row numbers.
    """
    lines = _first_lines(file)
    delimiter = max(_DELIMITERS, key=lambda d: _fields(lines, d))
    fields, first = _fields(lines, delimiter), (lines or [""])[0]
    if _fields(lines, _BLANK) >= max(2 * fields, 2):
        delimiter = _BLANK
    elif not fields:
        delimiter = max(_DELIMITERS + _BLANK if not set(_DELIMITERS) & set(first) else _DELIMITERS, key=first.count)
    rows = list(csv.reader(lines[:2], delimiter=delimiter, skipinitialspace=True))
    names = [name.strip() for name in rows[0]] if rows else []
    header = bool(names) and all(name and not _NUMBER.fullmatch(name) for name in names[1:])
    if header and not names[0]:
        header = len(names) > 1 and len(rows) > 1 and rows[1][0].strip().isdigit()
    elif header:
        header = not _NUMBER.fullmatch(names[0])
    names = names if header else [f"c{number}" for number in range(1, len(names) + 1)]
    return CsvFormat(delimiter=delimiter, header=header, columns=() if header else tuple(names)), names


def _first_lines(file):
    """-> the first whole lines that are not empty."""
    text = b""
    with path_of(file).open_stream() as stream:
        while text.count(b"\n") < _LINES and (more := stream.read(_BYTES)):
            text += more
        whole = not stream.read(1)
    lines = text.decode("utf-8-sig", "replace").split("\n")
    lines = [line.rstrip("\r") for line in (lines if whole else lines[:-1]) if line.strip()]
    return lines[:_LINES]


def _fields(lines, delimiter):
    """-> the number of fields per line, if all lines have the same number and it is at least two; else 0."""
    counts = {len(row) for row in csv.reader(lines, delimiter=delimiter)}
    return counts.pop() if len(counts) == 1 and min(counts) > 1 else 0
