"""The `csv` and `criteo` formats: delimited text, streamed block by block.

Arrow parses a block whose lines are all rows or empty. Otherwise the `csv` module examines the lines one by one,
because Arrow reads a quoted field up to its closing quote, so that one stray quote can swallow thousands of rows, ends
a row at a carriage return, and takes a zero byte for text.
"""

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRow, Block, Chunk
from ctr_trainer.data.conversion import csv_header
from ctr_trainer.data.conversion.text_blocks import LONGEST_LINE, first_line, text_blocks
from ctr_trainer.data.source import SourceFile
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SPARSE = tuple(f"C{i}" for i in range(1, 27))
CRITEO_COLUMNS = ("label", *CRITEO_DENSE, *CRITEO_SPARSE)
CRITEO = CsvFormat(delimiter="\t", header=False, columns=CRITEO_COLUMNS, quote="")
_SHOWN = 200  # Number of bytes of a bad row in its message.
_RETURN = re.compile(rb"\r(?!\n)")
_QUOTE_CURE = (
    'in [csv], `quote = ""` gives quotes no special meaning, and `lines_per_row` is the largest number of lines of a '
    "row with quoted line breaks"
)
_CLOSED = f"a row whose quotes are closed; {_QUOTE_CURE}"
csv.field_size_limit(2 * LONGEST_LINE)


def read(
    files: Sequence[SourceFile], spec: FeatureSpec | None, time: str | None, form: CsvFormat | None = None
) -> Iterator[Block]:
    """Yields the blocks of files, in the form of the spec's [csv] section or in `form`; see `blocks`.

    If the spec is unlabelled and `form` names the columns, the files may lack the label columns, as the test set of
    Criteo's challenge does.
    """
    form = form or (spec.csv if spec else CsvFormat())
    if spec and not spec.labelled and form.columns:
        file, labels = files[0].path, {label.column for label in spec.labels}
        others = tuple(name for name in form.columns if name not in labels)
        if len(csv_header.fields_of(file, first_line(file, form.encoding), form)) == len(others):
            form = dataclasses.replace(form, columns=others)
    return blocks(files, form, spec, time)


def blocks(
    files: Iterable[SourceFile], form: CsvFormat, spec: FeatureSpec | None = None, time: str | None = None
) -> Iterator[Block]:
    """Yields the blocks of delimited files, which may be compressed (.gz, .bz2, .zst): all columns, or those of a spec.

    Each line of a file is the header, a row, a bad row, empty, or the continuation of a quoted field. A bad row has too
    many or too few fields, a quote that is not closed (see CsvFormat), a zero byte, or a carriage return that is not at
    its end. `time` is the column of a split by time.
    """
    wanted = typed.uses(spec, time)
    for file in files:
        values = {name: None if value in form.null_values else value for name, value in file.partitions.items()}
        file, left, before = dataclasses.replace(file, partitions=values), b"", 0
        names: tuple[str, ...] = ()
        for text in text_blocks(file.path, form.encoding):
            if not names:
                line, _, rest = text.partition(b"\n")
                names, hint = csv_header.names_of(file.path, line.rstrip(b"\r"), form, wanted)
                cure = csv_header.missing_hint(names, form, len(wanted))
                typed.check(wanted, [*names, *file.partitions], file.path, spec, cure)
                text, before = (rest, 1) if form.header else (text, 0)
            text, left, rows = _cut(left + text, form, len(names))
            yield _CsvBlock(file, form, names, hint, text, before, rows).parse
            before += text.count(b"\n")
        if left:
            yield _CsvBlock(file, form, names, hint, left, before, None).parse


class _Row(NamedTuple):
    """Consecutive lines of a block that are a row or a bad row."""

    first: int  # Number of the first line, from 0 at the block's start.
    height: int  # Number of lines.
    fault: str = ""  # Description of a valid row if this is a bad one.
    field: int | None = None  # Index of a bad row's wrong field; None if the row has another number of fields.


def _cut(text: bytes, form: CsvFormat, fields: int) -> tuple[bytes, bytes, list[_Row] | None]:
    """Returns (block, a last row that may continue in the next one, rows if they may have several lines or None)."""
    if form.lines_per_row == 1 or form.quote.encode() not in text or len(text) > 2 * LONGEST_LINE:
        return text, b"", None
    lines = io.BytesIO(text).readlines()
    rows = list(_rows(lines, form, fields, final=False))
    end = sum(map(len, lines[: rows[-1].first + rows[-1].height])) if rows else 0
    return text[:end], text[end:], rows


def _rows(lines: Sequence[bytes], form: CsvFormat, fields: int, final: bool = True) -> Iterator[_Row]:
    """Yields the rows and bad rows of lines, except empty lines and, unless `final`, a last row that may continue."""
    # A quoted field with line breaks ends at its closing quote if the row then has at most `form.lines_per_row` lines
    # and the right number of fields. Otherwise its first line is a bad row, and the next line begins a new row.
    delimiter, quote = form.delimiter.encode(), form.quote.encode()
    special = re.compile(rb"[\0%b]|%b" % (re.escape(quote), _RETURN.pattern))
    at = 0
    while at < len(lines):
        line, count, found, fault = lines[at], 1, 0, ""
        end = len(line)  # The wrong field ends here.
        if not special.search(line):
            found = line.count(delimiter) + 1 if line.rstrip(b"\r\n") else 0
        elif b"\0" in line:
            fault, end = "text: it contains a zero byte", line.index(b"\0")
        else:
            try:
                found, count = _fields(lines[at : at + form.lines_per_row], form)
            except EOFError:  # The lines end within a quoted field.
                if not final and at + form.lines_per_row > len(lines):
                    return
                fault = _CLOSED
            except csv.Error:  # A line has a carriage return.
                fault, end = "a row without carriage returns inside", len(_RETURN.split(line, 1)[0])
            if count > 1 and found != fields:
                fault = _CLOSED
        if fault:
            part = line[:end].replace(b"\r", b" ").decode(errors="replace")
            yield _Row(at, 1, fault, len(next(csv.reader([part], **csv_header.dialect(form)), [""])) - 1)
            count = 1
        elif found == fields:
            yield _Row(at, count)
        elif found:
            cure = f"; {_QUOTE_CURE}" if quote and quote in line else ""
            yield _Row(at, 1, f"a row of {fields} fields (it has {found}){cure}")
        at += count


def _fields(lines: Iterable[bytes], form: CsvFormat) -> tuple[int, int]:
    """Returns the numbers of fields and lines of the first row."""

    def texts() -> Iterator[str]:
        for line in lines:
            if b"\0" in line:
                break
            yield line.decode(errors="replace")
        raise EOFError

    reader = csv.reader(texts(), **csv_header.dialect(form))
    return len(next(reader)), reader.line_num


@dataclasses.dataclass(frozen=True)
class _CsvBlock:
    """Whole rows of a file. For `names` and `hint`, see `csv_header.names_of`."""

    file: SourceFile
    form: CsvFormat
    names: Sequence[str]
    hint: str
    text: bytes
    before: int  # Number of lines of the file before this block.
    rows: list[_Row] | None  # The rows of the text, if they are known.

    def parse(self, bad_rows: list[BadRow]) -> Chunk:
        """Returns the Chunk of the good rows. Appends the bad rows to `bad_rows`."""
        table, places = self._parse_whole()
        if table is None:
            lines, good = io.BytesIO(self.text).readlines(), []
            for row in self.rows or _rows(lines, self.form, len(self.names)):
                if row.fault:
                    bad_rows.append(self._bad_row(row, lines[row.first]))
                else:
                    good.append(row)
            table = self._parse(b"".join(b"".join(lines[row.first : row.first + row.height]) for row in good))
            places = np.array([row.first for row in good], np.int64)
            if table is None or len(table) != len(good):
                raise UserError(
                    f"{self.file.path}, lines {self.before + 1} to {self.before + len(lines)}: {len(good):,} rows were "
                    f"parsed as {0 if table is None else len(table):,}; {_QUOTE_CURE}"
                )
        table = pa.table([_field(column, self.form) for column in table.columns], self.names)
        first = self.before + 1

        def line_of(row: int) -> int:
            return first + int(row if places is None else places[row])

        return Chunk(self.file.complete(table, self.file.partitions), self.file.path, line_of, self.hint)

    def _parse_whole(self) -> tuple[pa.Table | None, np.ndarray | None]:
        """Returns (table; the line of each row from 0, or None if row i is line i) if each line is a row or empty."""
        text = self.text
        if self.rows or b"\0" in text or text.count(b"\r") != text.count(b"\r\n"):
            return None, None
        table = self._parse(text)
        # A row with several lines has at least two that are not empty, unless the last quote is not closed.
        if table is None or (self.form.quote and _ends_open(table)):
            return None, None
        if len(table) == text.count(b"\n"):
            return table, None
        places = np.flatnonzero([bool(line.rstrip(b"\r\n")) for line in io.BytesIO(text)])
        return (table, places) if len(table) == len(places) else (None, None)

    def _parse(self, text: bytes) -> pa.Table | None:
        """Parses text to columns of strings, null if missing. Returns None if a row has a wrong number of fields."""
        columns, form = [str(at) for at in range(len(self.names))], self.form
        if not text:
            return pa.table({name: pa.array([], pa.string()) for name in columns})
        try:
            return pa_csv.read_csv(
                pa.BufferReader(pa.py_buffer(text)),
                pa_csv.ReadOptions(column_names=columns, block_size=len(text) + 1, use_threads=False),
                pa_csv.ParseOptions(delimiter=form.delimiter, quote_char=form.quote or False),
                pa_csv.ConvertOptions(
                    # The encoder checks UTF-8 later and can name the row of an invalid byte.
                    column_types=dict.fromkeys(columns, pa.string()),
                    check_utf8=False,
                    null_values=list(form.null_values),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None

    def _bad_row(self, row: _Row, line: bytes) -> BadRow:
        value = line[:_SHOWN].rstrip(b"\r\n").decode(errors="backslashreplace")
        number = self.before + 1 + row.first
        column = self.names[row.field] if row.field is not None and row.field < len(self.names) else None
        hint = self.hint if number == 1 + self.form.header else ""
        return BadRow(self.file.path, number, column, value, row.fault + hint)


def _ends_open(table: pa.Table) -> bool:
    """Whether a value of the last row contains a line break."""
    last = [column.cast(pa.binary()).to_pylist() for column in table.slice(max(len(table) - 1, 0)).columns]
    return any(b"\n" in (value or b"") for values in last for value in values)


def _field(column: pa.ChunkedArray, form: CsvFormat) -> pa.ChunkedArray:
    """Returns a column as bytes, null for a missing value."""
    if form.strip:
        column = pc.ascii_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, pa.array(form.null_values)), pa.scalar(None, pa.string()), column)
    return column.cast(pa.binary())
