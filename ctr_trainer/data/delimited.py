"""The `csv` format: delimited text, streamed block by block."""

import csv
import dataclasses
import glob
import pathlib

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from ctr_trainer.data.chunk import Chunk
from ctr_trainer.errors import UserError

_BLOCK = 32 << 20  # bytes of text in memory at a time; also the longest row


def read(source, spec, bad_rows, time=None):
    """Reads files by the spec's [csv] section; see `stream`."""
    return stream(source, form_of(source, spec.csv, spec, quote='"'), bad_rows, quote='"')


def form_of(source, form, spec, quote):
    """-> the form of files that, of an unlabelled spec, may lack the labels' columns: the first line's fields tell.

    Args:
      source, form, quote: as for `stream`.
      spec: FeatureSpec.
    """
    if spec.labelled or not form.columns:
        return form
    labels = {label.column for label in spec.labels}
    others = tuple(name for name in form.columns if name not in labels)
    return (
        dataclasses.replace(form, columns=others)
        if len(_fields(files(source)[0], form, quote)) == len(others)
        else form
    )


def stream(source, form, bad_rows, quote):
    """Yields the Chunks of delimited files, which may be compressed (.gz, .bz2, .zst).

    Empty lines are skipped; a row with too many or too few fields is a bad row. A quoted field holds no line break.

    Args:
      source: a path or glob, or a list of them; read in the order given, a glob's files by name.
      form: CsvFormat.
      bad_rows: BadRows.
      quote: the quote character; False where there is none.

    Raises:
      UserError: no such file, an empty one, one that is not text of this form.
    """
    for file in files(source):
        try:
            yield from _stream_file(file, form, bad_rows, quote)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{file}: cannot be read: {error}") from error


def files(source):
    """-> the paths that `source`, a path or glob or a list of them, stands for.

    Raises:
      UserError: one of them is no file.
    """
    found = []
    for name in [source] if isinstance(source, (str, pathlib.Path)) else source or []:
        if pathlib.Path(name).is_file():
            found.append(str(name))
            continue
        matches = sorted(f for f in glob.glob(str(name)) if pathlib.Path(f).is_file())
        if not matches:
            raise UserError(f"input {name}: no such file, and no file matches it as a pattern")
        found += matches
    if not found:
        raise UserError("no input: give a file, several, or a pattern such as 'day_*.tsv'")
    return found


def _stream_file(file, form, bad_rows, quote):
    names = list(form.columns) or _header(file, form, quote)
    misfits = []  # rows with a wrong number of fields, in the order of the file

    def misfit(row):
        misfits.append(row)
        return "skip"

    reader = pa_csv.open_csv(
        file,
        # Only a single-threaded reader knows the numbers of the rows that it skips. Our threads are the encoder's.
        pa_csv.ReadOptions(column_names=names, skip_rows=int(form.header), block_size=_BLOCK, use_threads=False),
        pa_csv.ParseOptions(delimiter=form.delimiter, quote_char=quote, invalid_row_handler=misfit),
        pa_csv.ConvertOptions(
            # Without the check a wrong byte is found, and named, with its row.
            column_types={name: pa.string() for name in names},
            check_utf8=False,
            null_values=list(form.null_values),
            strings_can_be_null=True,
        ),
    )
    first, reported = 0, 0
    for batch in reader:
        table = pa.table([_field(column, form) for column in batch.columns], names)
        reported = _report(file, misfits, reported, bad_rows)
        yield Chunk(table, file, lambda row, first=first: _line(file, _number(first + row, misfits, form)))
        first += len(table)
    _report(file, misfits, reported, bad_rows)


def _header(file, form, quote):
    names = [name.strip() if form.strip else name for name in _fields(file, form, quote)]
    if not any(names):
        raise UserError(f"{file}, line 1: expected a header that names the columns, and the line is empty")
    return names


def _fields(file, form, quote):
    """-> the fields of a file's first line."""
    quoting = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
    return next(csv.reader([first_line(file)], delimiter=form.delimiter, quoting=quoting), [])


def first_line(file):
    """-> the first line of a text file, without its end."""
    text = b""
    with pa.input_stream(file) as stream:
        while b"\n" not in text and (more := stream.read(1 << 16)):
            text += more
    return text.split(b"\n")[0].decode("utf-8-sig", "replace").rstrip("\r")


def _field(column, form):
    """One column as bytes, null where missing."""
    if form.strip:
        column = pc.ascii_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, pa.array(form.null_values)), pa.scalar(None, pa.string()), column)
    return column.cast(pa.binary())


def _report(file, misfits, reported, bad_rows):
    for row in misfits[reported:]:
        expected = f"a row of {row.expected_columns} fields (it has {row.actual_columns})"
        bad_rows.add(file, _line(file, row.number), None, row.text[:200], expected)
        reported += 1
    return reported


def _number(row, misfits, form):
    """The number, from 1 and with the misfits, of the file's `row`-th good row, from 0; empty lines do not count."""
    number = row + 1 + form.header
    for misfit in misfits:
        if misfit.number > number:
            break
        number += 1
    return number


def _line(file, number):
    """The line, from 1, of the `number`-th line that is not empty."""
    with pa.input_stream(file) as stream:
        line, seen, rest = 0, 0, b""
        while text := stream.read(1 << 20):
            *lines, rest = (rest + text).split(b"\n")
            for content in lines:
                line += 1
                seen += bool(content.rstrip(b"\r"))
                if seen == number:
                    return line
    return line + 1
