"""The `csv` and `criteo` formats: delimited text, streamed block by block."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRowSink, Chunk
from ctr_trainer.data.conversion import csv_header
from ctr_trainer.data.conversion.csv_lines import QUOTE_CURE, Lines, lines_of
from ctr_trainer.data.conversion.text_blocks import LONGEST_LINE, first_line, text_blocks
from ctr_trainer.data.source import SourceFile
from ctr_trainer.features.spec import CsvFormat, FeatureSpec
from ctr_trainer.system.messages.errors import UserError

CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SPARSE = tuple(f"C{i}" for i in range(1, 27))
CRITEO_COLUMNS = ("label", *CRITEO_DENSE, *CRITEO_SPARSE)
_CRITEO = CsvFormat(delimiter="\t", header=False, columns=CRITEO_COLUMNS, quote="")
_SHOWN = 200  # Number of bytes of a bad row in its message.


def read(
    files: Sequence[SourceFile], spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None
) -> Iterator["CsvBlock"]:
    """Yields the blocks of files in the form that the spec's [csv] section describes; see `blocks`."""
    return blocks(files, form_of(files, spec.csv, spec), spec, time)


def read_criteo(
    files: Sequence[SourceFile], spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None
) -> Iterator["CsvBlock"]:
    """Yields the blocks of Criteo's files: tab-separated, without a header or quotes; see `CRITEO_COLUMNS`.

    If the spec is unlabelled, the files may be the test set of the challenge, which has no label.
    """
    return blocks(files, form_of(files, _CRITEO, spec), spec, time)


def form_of(files: Sequence[SourceFile], form: CsvFormat, spec: FeatureSpec) -> CsvFormat:
    """Returns the form, without the label columns if the spec is unlabelled and the first line lacks them."""
    if spec.labelled or not form.columns:
        return form
    labels = {label.column for label in spec.labels}
    others = tuple(name for name in form.columns if name not in labels)
    file = files[0].path
    fields = csv_header.fields_of(file, first_line(file, form.encoding), form)
    return dataclasses.replace(form, columns=others) if len(fields) == len(others) else form


def blocks(
    files: Iterable[SourceFile], form: CsvFormat, spec: FeatureSpec | None = None, time: str | None = None
) -> Iterator["CsvBlock"]:
    """Yields the CsvBlocks of delimited files, which may be compressed (.gz, .bz2, .zst).

    Each line of a file is the header, a row, a bad row, empty, or the continuation of a quoted field. A bad row has too
    many or too few fields, a quote that is not closed (see CsvFormat), a zero byte, or a carriage return that is not at
    its end.

    Args:
      spec: FeatureSpec, whose columns every file must have; None reads all columns of the files.
      time: column of a split by time; None for no such split.
    """
    wanted = typed.uses(spec, time) if spec else {}
    for file in files:
        left, before = b"", 0
        names: tuple[str, ...] = ()
        for text in text_blocks(file.path, form.encoding):
            if not names:
                line, _, rest = text.partition(b"\n")
                names, hint = csv_header.names_of(file.path, line.rstrip(b"\r"), form, wanted)
                if spec:
                    cure = csv_header.missing_hint(names, form, len(wanted))
                    typed.check(wanted, [*names, *file.partitions], file.path, spec, cure)
                text, before = (rest, 1) if form.header else (text, 0)
            text, left, lines = _cut(left + text, form, len(names))
            yield CsvBlock(file, form, names, hint, text, before, lines)
            before += text.count(b"\n")
        if left:
            yield CsvBlock(file, form, names, hint, left, before, None)


def _cut(text: bytes, form: CsvFormat, fields: int) -> tuple[bytes, bytes, list[Lines] | None]:
    """Divides a block before a last row that may continue in the next block.

    Returns:
      (block, rest, the `Lines` of the block or, if no row can have several lines, None).
    """
    if form.lines_per_row == 1 or form.quote.encode() not in text or len(text) > 2 * LONGEST_LINE:
        return text, b"", None
    lines = list(lines_of(text, form, fields, final=False))
    end = lines[-1].stop if lines else 0
    return text[:end], text[end:], lines


@dataclasses.dataclass(frozen=True)
class CsvBlock:
    """Whole rows of a file; a `blocks.Block`.

    Attributes:
      names, hint: see `csv_header.names_of`.
      before: number of lines of the file before this block.
      lines: the `Lines` of the text, if they are known.
    """

    file: SourceFile
    form: CsvFormat
    names: Sequence[str]
    hint: str
    text: bytes
    before: int
    lines: list[Lines] | None

    def parse(self, bad_rows: BadRowSink) -> Chunk:
        """Returns the Chunk of the good rows. Adds the bad rows to `bad_rows`."""
        table, places = self._parse_whole()
        if table is None:
            rows = []
            for lines in self.lines or lines_of(self.text, self.form, len(self.names)):
                self._report(lines, bad_rows) if lines.fault else rows.append(lines)
            table = self._parse(b"".join(self.text[row.start : row.stop] for row in rows))
            places = np.array([row.first for row in rows], np.int64)
            if table is None or len(table) != len(rows):
                last = self.before + self.text.count(b"\n")
                raise UserError(
                    f"{self.file.path}, lines {self.before + 1} to {last}: {len(rows):,} rows were parsed as "
                    f"{0 if table is None else len(table):,}; {QUOTE_CURE}"
                )
        table = pa.table([_field(column, self.form) for column in table.columns], self.names)
        first = self.before + 1

        def line_of(row: int) -> int:
            return first + int(row if places is None else places[row])

        return Chunk(self.file.complete(table, self.file.partitions), self.file.path, line_of, self.hint)

    def _parse_whole(self) -> tuple[pa.Table | None, np.ndarray | None]:
        """Parses the block if each of its lines is a row or empty.

        Returns:
          (table, or None; int64[n], the line of each row from 0, or None if row i is line i).
        """
        text = self.text
        if self.lines or b"\0" in text or text.count(b"\r") != text.count(b"\r\n"):
            return None, None
        table = self._parse(text)
        # A row with several lines has at least two that are not empty, unless the last quote is not closed.
        if table is None or (self.form.quote and _ends_open(table)):
            return None, None
        if len(table) == text.count(b"\n"):
            return table, None
        places = _lines_with_text(text)
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

    def _report(self, lines: Lines, bad_rows: BadRowSink) -> None:
        value = self.text[lines.start : lines.stop][:_SHOWN].rstrip(b"\r\n").decode(errors="backslashreplace")
        line = self.before + 1 + lines.first
        column = self.names[lines.field] if lines.field is not None and lines.field < len(self.names) else None
        hint = self.hint if line == 1 + self.form.header else ""
        bad_rows.add(self.file.path, line, column, value, lines.fault + hint)


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


def _lines_with_text(block: bytes) -> np.ndarray:
    """Returns the numbers, from 0, of the lines that are not empty, as int64."""
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    return np.flatnonzero((lengths > 1) | ((lengths == 1) & (text[starts] != ord("\r"))))
