"""The rows of one file of delimited text."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from ctr_trainer.data import csv_lines
from ctr_trainer.data.chunk import Chunk
from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
_SHOWN = 200  # Bytes of a bad row that its message shows.
_LONGEST = 64 << 20  # Largest number of bytes of a block that waits for the end of a row.
_QUOTE_CURE = (
    'in [csv], `quote = ""` takes quotes as text, and `lines_per_row` is the largest number of lines of a row with '
    "quoted line breaks"
)
_EXPECTED = {
    csv_lines.UNCLOSED: f"a row whose quotes are closed; {_QUOTE_CURE}",
    csv_lines.RETURN: "a row without a carriage return in it",
    csv_lines.NUL: "text: it has a zero byte",
}


class CsvRows:
    """Makes Chunks of blocks of lines, and checks that each line is part of a row or bad row, empty, or the header.

    Args:
      file: path of the file, for messages.
      form: CsvFormat.
      first: FirstLine of the file.
      bad_rows: BadRows, which counts each row that is left out.
    """

    def __init__(self, file, form, first, bad_rows):
        self._file, self._form, self._bad_rows = file, form, bad_rows
        self._names, self._hint = first.names, first.hint
        self._lines = int(form.header)  # Number of lines before the present block.
        self._rows = self._bad = self._blank = self._continued = 0

    def chunks(self, blocks, block):
        """Yields the Chunks of `block`, which begins behind the header, and of the blocks that follow."""
        while len(block) or not blocks.ended:
            if len(block):
                yield self._chunk(block, blocks)
            block = blocks.read(self._lines)
        if self._blank or self._continued:
            _log.info(
                "%s: %d lines: %d rows, %d bad rows, %d empty lines, %d lines that go on with the row before them",
                *(self._file, self._lines, self._rows, self._bad, self._blank, self._continued),
            )

    def _chunk(self, block, blocks):
        counts = csv_lines.count(block, self._form)
        table, places, blank, bad, continued = None, None, counts.blank, 0, 0
        if not (counts.quotes or counts.returns or counts.nuls):
            table = _parse(block, self._names, self._form)
            places = _lines_with_text(block) if counts.blank else None
        if table is None:
            block = bytes(block)
            lines = csv_lines.scan(block, self._form, len(self._names), blocks.ended or len(block) > _LONGEST)
            if lines.end < len(block):
                blocks.put_back(block[lines.end :])
                block = block[: lines.end]
                counts = csv_lines.count(block, self._form)
            wrong = np.flatnonzero((lines.kinds != csv_lines.ROW) & (lines.kinds != csv_lines.BLANK))
            self._report(block, lines, wrong)
            table = _parse(_without(block, lines, wrong), self._names, self._form)
            places = lines.first_lines[lines.kinds == csv_lines.ROW]
            bad, continued = len(wrong), int(np.sum(lines.spans - 1))
            blank = int(np.sum(lines.kinds == csv_lines.BLANK))  # An empty line in a quoted field does not count.
        self._check(counts.lines, 0 if table is None else len(table), bad, blank, continued)
        before = self._lines
        self._lines += counts.lines
        self._rows, self._bad = self._rows + len(table), self._bad + bad
        self._blank, self._continued = self._blank + blank, self._continued + continued

        def line_of(row):
            return before + 1 + int(row if places is None else places[row])

        return Chunk(table.rename_columns(self._names), self._file, line_of, self._hint)

    def _report(self, block, lines, wrong):
        """Reports the bad rows to `bad_rows`."""
        for at in wrong:
            kind, place, line = lines.kinds[at], lines.fields[at], self._lines + 1 + int(lines.first_lines[at])
            value = _text(block, lines, at)[:_SHOWN].rstrip(b"\r\n")
            column, expected = None, _EXPECTED.get(kind)
            if kind == csv_lines.MISFIT:
                cure = f"; {_QUOTE_CURE}" if self._form.quote and self._form.quote.encode() in value else ""
                expected = f"a row of {len(self._names)} fields (it has {place}){cure}"
            elif place < len(self._names):
                column = self._names[place]
            hint = self._hint if line == 1 + self._form.header else ""
            self._bad_rows.add(self._file, line, column, value.decode(errors="backslashreplace"), expected + hint)

    def _check(self, lines, rows, bad, blank, continued):
        if lines != rows + bad + blank + continued:
            raise UserError(
                f"{self._file}, lines {self._lines + 1} to {self._lines + lines}: {lines:,} lines became "
                f"{rows:,} rows, {bad:,} bad rows, {blank:,} empty lines and {continued:,} lines that go on "
                f"with a row, which is another number of lines; {_QUOTE_CURE}"
            )


def _text(block, lines, at):
    """-> the text of the unit `at` of `lines`."""
    return block[lines.starts[at] : lines.starts[at + 1] if at + 1 < len(lines.starts) else lines.end]


def _without(block, lines, wrong):
    """-> the block without its bad rows."""
    parts, behind = [], 0
    for at in wrong:
        parts.append(block[behind : lines.starts[at]])
        behind = lines.starts[at] + len(_text(block, lines, at))
    return b"".join([*parts, block[behind:]])


def _parse(block, names, form):
    """-> the table of a block's rows, as bytes, null if missing; None if a row has another number of fields."""
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
                # Arrow does not check UTF-8 here, so that a later check can name the row of a wrong byte.
                column_types=dict.fromkeys(columns, pa.string()),
                check_utf8=False,
                null_values=list(form.null_values),
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid:
        return None
    return pa.table([_field(column, form) for column in table.columns], columns)


def _field(column, form):
    """-> a column as bytes, null for a missing value."""
    if form.strip:
        column = pc.ascii_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, pa.array(form.null_values)), pa.scalar(None, pa.string()), column)
    return column.cast(pa.binary())


def _lines_with_text(block):
    """-> int64, the numbers, from 0, of the lines that are not empty."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    returns = np.frombuffer(block, np.uint8)[starts] == ord("\r")
    return np.flatnonzero((lengths > 1) | ((lengths == 1) & ~returns))
