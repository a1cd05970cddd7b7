"""The rows of one file of delimited text."""

import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from ctr_trainer.data import csv_lines
from ctr_trainer.data.blocks import BadRowSink, Chunk
from ctr_trainer.data.text_blocks import TextBlocks
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_SHOWN = 200  # Number of bytes of a bad row in its message.
_LONGEST = 64 << 20  # Largest number of bytes of a block that waits for the end of a row.
_QUOTE_CURE = (
    'in [csv], `quote = ""` gives quotes no special meaning, and `lines_per_row` is the largest number of lines of a '
    "row with quoted line breaks"
)
_EXPECTED = {
    csv_lines.UNCLOSED: f"a row whose quotes are closed; {_QUOTE_CURE}",
    csv_lines.RETURN: "a row without carriage returns inside",
    csv_lines.NUL: "text: it contains a zero byte",
}


class CsvRows:
    """Splits the lines of a file into blocks, which can be parsed independently.

    Args:
      names, hint: see `csv_header.names_of`.
    """

    def __init__(self, file: str, form: CsvFormat, names: Sequence[str], hint: str) -> None:
        self.file, self.form, self.names, self.hint = file, form, names, hint
        self.tally = _Tally(file, int(form.header))

    def blocks(self, blocks: TextBlocks, block: memoryview) -> Iterator["CsvBlock"]:
        """Yields the CsvBlocks of `block`, which begins after the header, and of the blocks that follow."""
        before = int(self.form.header)
        while len(block) or not blocks.ended:
            if len(block):
                cut = self._cut(block, before, blocks)
                before += cut.most_rows
                self.tally.begin(1)
                yield cut
            block = blocks.read(before)
        self.tally.begin(0, last=True)

    def _cut(self, block: memoryview, before: int, blocks: TextBlocks) -> "CsvBlock":
        """Returns the lines of a block, without a last row that may continue in the next block."""
        text = bytes(block)
        count, blank, needs_scan = csv_lines.count(text, self.form)
        lines = None
        if needs_scan:
            lines = csv_lines.scan(text, self.form, len(self.names), blocks.ended or len(text) > _LONGEST)
            if lines.end < len(text):
                blocks.put_back(text[lines.end :])
                text = text[: lines.end]
                count, blank, _ = csv_lines.count(text, self.form)
        return CsvBlock(self, text, before, count, blank, lines)


@dataclasses.dataclass(frozen=True)
class CsvBlock:
    """Complete rows of a file. `parse` checks that every line is part of a row, part of a bad row, or empty.

    Attributes:
      before: number of lines of the file before this block.
      most_rows: number of lines.
      blank: number of empty lines, including empty lines in quoted fields.
      lines: csv_lines.Lines of the block; None if they are needed only if a row has another number of fields.
    """

    rows: CsvRows
    text: bytes
    before: int
    most_rows: int
    blank: int
    lines: csv_lines.Lines | None

    def parse(self, bad_rows: BadRowSink) -> Chunk:
        """Returns the Chunk of the good rows; see `blocks.Block`."""
        file, form, names = self.rows.file, self.rows.form, self.rows.names
        blank, bad, continued = self.blank, 0, 0
        table = _parse(self.text, names, form) if self.lines is None else None
        places = _lines_with_text(self.text) if blank else None
        if table is None:
            lines = self.lines or csv_lines.scan(self.text, form, len(names), True)
            wrong = np.flatnonzero((lines.kinds != csv_lines.ROW) & (lines.kinds != csv_lines.BLANK))
            self._report(lines, wrong, bad_rows)
            table = _parse(_without(self.text, lines, wrong), names, form)
            places = lines.first_lines[lines.kinds == csv_lines.ROW]
            bad, continued = len(wrong), int(np.sum(lines.spans - 1))
            blank = int(np.sum(lines.kinds == csv_lines.BLANK))  # Without the empty lines in quoted fields.
        rows = 0 if table is None else len(table)
        self._check(rows, bad, blank, continued)
        assert table is not None  # All lines are accounted for, so the rows were parsed.
        self.rows.tally.add(self.most_rows, rows, bad, blank, continued)
        before = self.before

        def line_of(row: int) -> int:
            return before + 1 + int(row if places is None else places[row])

        return Chunk(table.rename_columns(names), file, line_of, self.rows.hint)

    def _report(self, lines: csv_lines.Lines, wrong: np.ndarray, bad_rows: BadRowSink) -> None:
        names, form = self.rows.names, self.rows.form
        for at in wrong:
            kind, place, line = lines.kinds[at], lines.fields[at], self.before + 1 + int(lines.first_lines[at])
            value = _text(self.text, lines, at)[:_SHOWN].rstrip(b"\r\n")
            column, expected = None, _EXPECTED.get(kind, "")
            if kind == csv_lines.MISFIT:
                cure = f"; {_QUOTE_CURE}" if form.quote and form.quote.encode() in value else ""
                expected = f"a row of {len(names)} fields (it has {place}){cure}"
            elif place < len(names):
                column = names[place]
            hint = self.rows.hint if line == 1 + form.header else ""
            bad_rows.add(self.rows.file, line, column, value.decode(errors="backslashreplace"), expected + hint)

    def _check(self, rows: int, bad: int, blank: int, continued: int) -> None:
        lines = self.most_rows
        if lines != rows + bad + blank + continued:
            raise UserError(
                f"{self.rows.file}, lines {self.before + 1} to {self.before + lines}: {lines:,} lines became "
                f"{rows:,} rows, {bad:,} bad rows, {blank:,} empty lines and {continued:,} lines that "
                f"continue a row. These numbers do not add up; {_QUOTE_CURE}"
            )


class _Tally:
    """Counts the lines of a file's header and blocks, and logs the counts once the last block is parsed."""

    def __init__(self, file: str, header: int) -> None:
        self._file, self._counts = file, np.array([header, 0, 0, 0, 0])
        self._open, self._last, self._lock = 0, False, threading.Lock()

    def begin(self, blocks: int, last: bool = False) -> None:
        """Notes that further blocks will be parsed, or that there are no more."""
        with self._lock:
            self._open, self._last = self._open + blocks, last
            self._log()

    def add(self, *counts: int) -> None:
        """Adds the numbers of lines, rows, bad rows, empty lines and continued lines of a block."""
        with self._lock:
            self._open -= 1
            self._counts += counts
            self._log()

    def _log(self) -> None:
        if self._last and not self._open and self._counts[3:].any():
            _log.info(
                "%s: %d lines: %d rows, %d bad rows, %d empty lines, %d lines that continue the previous row",
                *(self._file, *self._counts),
            )


def _text(block: bytes, lines: csv_lines.Lines, at: int) -> bytes:
    """Returns the text of the unit `at` of `lines`."""
    return block[lines.starts[at] : lines.starts[at + 1] if at + 1 < len(lines.starts) else lines.end]


def _without(block: bytes, lines: csv_lines.Lines, wrong: np.ndarray) -> bytes:
    """Returns the block without its bad rows."""
    parts, behind = [], 0
    for at in wrong:
        parts.append(block[behind : lines.starts[at]])
        behind = lines.starts[at] + len(_text(block, lines, at))
    return b"".join([*parts, block[behind:]])


def _parse(block: bytes, names: Sequence[str], form: CsvFormat) -> pa.Table | None:
    """Returns the table of a block's rows as bytes, null if missing; None if a row has another number of fields."""
    if not len(block):
        return pa.table({str(at): pa.array([], pa.binary()) for at in range(len(names))})
    columns = [str(at) for at in range(len(names))]
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(block)),
            pa_csv.ReadOptions(column_names=columns, block_size=len(block) + 1, use_threads=False),
            pa_csv.ParseOptions(
                delimiter=form.delimiter, quote_char=form.quote or False, newlines_in_values=form.lines_per_row > 1
            ),
            pa_csv.ConvertOptions(
                # UTF-8 is checked later, by code that can name the row of an invalid byte.
                column_types=dict.fromkeys(columns, pa.string()),
                check_utf8=False,
                null_values=list(form.null_values),
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid:
        return None
    return pa.table([_field(column, form) for column in table.columns], columns)


def _field(column: pa.ChunkedArray, form: CsvFormat) -> pa.ChunkedArray:
    """Returns a column as bytes, null for a missing value."""
    if form.strip:
        column = pc.ascii_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, pa.array(form.null_values)), pa.scalar(None, pa.string()), column)
    return column.cast(pa.binary())


def _lines_with_text(block: bytes) -> np.ndarray:
    """Returns the numbers, from 0, of the lines that are not empty, as int64."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    returns = np.frombuffer(block, np.uint8)[starts] == ord("\r")
    return np.flatnonzero((lengths > 1) | ((lengths == 1) & ~returns))
