"""The `csv` format: delimited text, streamed block by block."""

import dataclasses
from collections.abc import Iterator

from ctr_trainer.data import csv_header, typed
from ctr_trainer.data.blocks import BadRowSink
from ctr_trainer.data.csv_rows import CsvBlock, CsvRows
from ctr_trainer.data.source import Input, named
from ctr_trainer.data.text_blocks import TextBlocks
from ctr_trainer.features.spec import CsvFormat, FeatureSpec
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

_BLOCK = 8 << 20  # Bytes of text that are parsed at a time. Arrow reads larger blocks at half the speed.
_LONGEST_LINE = 32 << 20  # Bytes.
CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SPARSE = tuple(f"C{i}" for i in range(1, 27))
CRITEO_COLUMNS = ("label", *CRITEO_DENSE, *CRITEO_SPARSE)

_CRITEO = CsvFormat(delimiter="\t", header=False, columns=CRITEO_COLUMNS, quote="")


def read(source: Input, spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None) -> Iterator[CsvBlock]:
    """Yields the CsvBlocks of files by the spec's [csv] section; see `blocks`."""
    return blocks(source, form_of(source, spec.csv, spec), spec, time)


def form_of(source: Input, form: CsvFormat, spec: FeatureSpec) -> CsvFormat:
    """Returns the form, without the label columns if the spec is unlabelled and the first line lacks them."""
    if spec.labelled or not form.columns:
        return form
    labels = {label.column for label in spec.labels}
    others = tuple(name for name in form.columns if name not in labels)
    fields = csv_header.first_fields(files(source)[0], form)
    return dataclasses.replace(form, columns=others) if len(fields) == len(others) else form


def blocks(
    source: Input, form: CsvFormat, spec: FeatureSpec | None = None, time: str | None = None
) -> Iterator[CsvBlock]:
    """Yields the CsvBlocks of delimited files, which may be compressed (.gz, .bz2, .zst).

    Each line of a file is the header, a row, a bad row, or empty, or continues a quoted field of the previous row; each
    block is checked for this. A bad row has too many or too few fields, a quote that is not closed (see CsvFormat), a
    zero byte, or a carriage return that is not at its end.

    Args:
      source: a path or glob, or a list of them. They are read in the given order, the files of a glob by name.
      spec: FeatureSpec, whose columns every file must have; None reads all columns of the files.
      time: column of a split by time; None for no such split.

    Raises:
      UserError: a file does not exist, is empty, is not text in this form, or lacks a column.
    """
    wanted = typed.uses(spec, time) if spec else {}
    for file in files(source):
        with TextBlocks(file, _BLOCK, _LONGEST_LINE) as text:
            block = text.read(0)
            line, _, _ = bytes(block).partition(b"\n")
            names, hint = csv_header.names_of(file, line.rstrip(b"\r"), form, wanted)
            if spec:
                typed.check(wanted, names, file, spec, csv_header.missing_hint(names, form, len(wanted)))
            rows = block[len(line) + 1 :] if form.header else block
            yield from CsvRows(file, form, names, hint).blocks(text, rows)


def files(source: Input) -> list[str]:
    """Lists the files of `source`, which is a path, a URL, a glob, or a list of them.

    Raises:
      UserError: a path is not a file, or a glob matches none.
    """
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


def read_criteo(source: Input, spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None) -> Iterator[CsvBlock]:
    """Yields the CsvBlocks of Criteo's files, which are tab-separated, without header and quotes; see `CRITEO_COLUMNS`.

    If the spec is unlabelled, the files may be the test set of the challenge, which has no label.
    """
    return blocks(source, form_of(source, _CRITEO, spec), spec, time)
