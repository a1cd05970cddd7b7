"""The `csv` format: delimited text, streamed block by block."""

import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRowSink, Block, Chunk
from ctr_trainer.data.conversion import csv_header, csv_lines
from ctr_trainer.data.conversion.text_blocks import TextBlocks
from ctr_trainer.data.source import Input, named
from ctr_trainer.features.spec import CsvFormat, FeatureSpec
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

_BLOCK = 8 << 20  # Bytes of text per block. Arrow parses larger blocks at half the speed.
_LONGEST_LINE = 32 << 20  # Bytes.
CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SPARSE = tuple(f"C{i}" for i in range(1, 27))
CRITEO_COLUMNS = ("label", *CRITEO_DENSE, *CRITEO_SPARSE)
_CRITEO = CsvFormat(delimiter="\t", header=False, columns=CRITEO_COLUMNS, quote="")
_SHOWN = 200  # Number of bytes of a bad row in its message.
_LONGEST = 64 << 20  # Largest number of bytes of a block that is extended to find the end of a row.
_QUOTE_CURE = (
    'in [csv], `quote = ""` gives quotes no special meaning, and `lines_per_row` is the largest number of lines of a '
    "row with quoted line breaks"
)
_EXPECTED = {
    csv_lines.UNCLOSED: f"a row whose quotes are closed; {_QUOTE_CURE}",
    csv_lines.RETURN: "a row without carriage returns inside",
    csv_lines.NUL: "text: it contains a zero byte",
}
_log = logging.getLogger(__name__)


def read(source: Input, spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None) -> Iterator[Block]:
    """Yields the blocks of files in the form that the spec's [csv] section describes; see `blocks`."""
    return blocks(source, form_of(source, spec.csv, spec), spec, time)


def form_of(source: Input, form: CsvFormat, spec: FeatureSpec) -> CsvFormat:
    """Returns the form, without the label columns if the spec is unlabelled and the first line lacks them."""
    if spec.labelled or not form.columns:
        return form
    labels = {label.column for label in spec.labels}
    others = tuple(name for name in form.columns if name not in labels)
    file = files(source)[0]
    with TextBlocks(file, _BLOCK, _LONGEST_LINE, form.encoding) as text:
        fields = csv_header.fields_of(file, _first_line(text.read(0)), form)
    return dataclasses.replace(form, columns=others) if len(fields) == len(others) else form


def blocks(
    source: Input, form: CsvFormat, spec: FeatureSpec | None = None, time: str | None = None
) -> Iterator["CsvBlock"]:
    """Yields the CsvBlocks of delimited files, which may be compressed (.gz, .bz2, .zst).

    Each line of a file is the header, a row, a bad row, empty, or the continuation of a quoted field. Each block is
    checked to account for all its lines. A bad row has too many or too few fields, a quote that is not closed (see
    CsvFormat), a zero byte, or a carriage return that is not at its end.

    Args:
      source: see `files`. Files are read in the given order; the files of a glob are sorted by name.
      spec: FeatureSpec, whose columns every file must have; None reads all columns of the files.
      time: column of a split by time; None for no such split.
    """
    wanted = typed.uses(spec, time) if spec else {}
    for file in files(source):
        with TextBlocks(file, _BLOCK, _LONGEST_LINE, form.encoding) as text:
            block = text.read(0)
            names, hint = csv_header.names_of(file, _first_line(block), form, wanted)
            if spec:
                typed.check(wanted, names, file, spec, csv_header.missing_hint(names, form, len(wanted)))
            rows = block[block.index(b"\n") + 1 :] if form.header else block
            yield from CsvRows(file, form, names, hint).blocks(text, rows)


def _first_line(block: bytes) -> bytes:
    return block[: block.index(b"\n")].rstrip(b"\r")


def files(source: Input) -> list[str]:
    """Lists the files of `source`, which is a path, a URL, a glob, or a list of them."""
    found = []
    for name in named(source):
        path = path_of(name)
        if path.is_file():
            found.append(str(name))
            continue
        matches = [str(match) for match in path.matches() if match.is_file()]
        if not matches:
            raise UserError(f"input {name}: no such file, and no file matches it as a pattern")
        found += matches
    if not found:
        raise UserError("no input: give one or more files, or a pattern such as 'day_*.tsv'")
    return found


def read_criteo(source: Input, spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None) -> Iterator[Block]:
    """Yields the blocks of Criteo's files: tab-separated, without a header or quotes; see `CRITEO_COLUMNS`.

    If the spec is unlabelled, the files may be the test set of the challenge, which has no label.
    """
    return blocks(source, form_of(source, _CRITEO, spec), spec, time)


class CsvRows:
    """Splits a file into blocks that can be parsed independently, and logs the numbers of lines and rows at the end.

    Args:
      names, hint: see `csv_header.names_of`.
    """

    def __init__(self, file: str, form: CsvFormat, names: Sequence[str], hint: str) -> None:
        self.file, self.form, self.names, self.hint = file, form, names, hint
        self._counts = np.array([int(form.header), 0, 0, 0, 0])
        self._open, self._all_cut, self._lock = 0, False, threading.Lock()

    def blocks(self, blocks: TextBlocks, block: bytes) -> Iterator["CsvBlock"]:
        """Yields the CsvBlocks of the file. `block` is the first block, without the header."""
        before = int(self.form.header)
        while block or not blocks.ended:
            if block:
                cut = self._cut(block, before, blocks)
                before += cut.most_rows
                with self._lock:
                    self._open += 1
                yield cut
            block = blocks.read(before)
        with self._lock:
            self._all_cut = True
            self._log_counts()

    def count(self, *counts: int) -> None:
        """Adds the numbers of lines, rows, bad rows, empty lines and continuation lines of a parsed block."""
        with self._lock:
            self._open -= 1
            self._counts += counts
            self._log_counts()

    def _log_counts(self) -> None:
        if self._all_cut and not self._open and self._counts[3:].any():
            _log.info(
                "%s: %d lines: %d rows, %d bad rows, %d empty lines, %d lines that continue the previous row",
                *(self.file, *self._counts),
            )

    def _cut(self, text: bytes, before: int, blocks: TextBlocks) -> "CsvBlock":
        """Returns the lines of a block, except a last row that may continue in the next block."""
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
      most_rows: number of lines of this block.
      blank: number of empty lines, including empty lines in quoted fields.
      lines: csv_lines.Lines of the block; None if the block must be scanned only if a row has a wrong number of fields.
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
            blank = int(np.sum(lines.kinds == csv_lines.BLANK))  # Excludes empty lines in quoted fields.
        rows = 0 if table is None else len(table)
        self._check(rows, bad, blank, continued)
        assert table is not None  # All lines are accounted for, so the rows were parsed.
        self.rows.count(self.most_rows, rows, bad, blank, continued)
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
    """Parses a block to columns of bytes, null if missing. Returns None if a row has a wrong number of fields."""
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
                # The encoder checks UTF-8 later and can name the row of an invalid byte.
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
