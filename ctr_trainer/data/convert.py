"""Source files to a data set: Parquet of keys, numbers and labels."""

import contextlib
import logging
import pathlib
import sys
import time

import numpy as np
import tqdm

from ctr_trainer.data import criteo, dataset, delimited, libsvm, movielens, parquet, synthetic, tfrecord
from ctr_trainer.data.badrows import BadRows
from ctr_trainer.data.encode import TIME, Encoder
from ctr_trainer.data.listing import list_files
from ctr_trainer.data.read_ahead import ReadAhead
from ctr_trainer.data.split import Split
from ctr_trainer.data.summary import format_summary
from ctr_trainer.data.writer import DatasetWriter
from ctr_trainer.files.outputs import refuse_overlap
from ctr_trainer.files.unfinished import MARKER, Unfinished
from ctr_trainer.messages.errors import UserError

__all__ = ["FORMATS", "SOURCES", "convert", "encoded", "format_summary", "progress_bar"]

SOURCES = {
    "criteo": criteo.read,
    "csv": delimited.read,
    "libffm": libsvm.read_fields,
    "libsvm": libsvm.read,
    "movielens": movielens.read,
    "parquet": parquet.read,
    "tfrecord": tfrecord.read,
}
TYPED = ("parquet", "tfrecord")  # their columns have types, and their rows no lines
FORMATS = (*SOURCES, "synthetic")
_UNSPLIT = ".unsplit"
_log = logging.getLogger(__name__)


def convert(
    format,
    input,
    output,
    spec,
    split=None,
    split_seed=2026,
    rows_per_file=1_000_000,
    rows_per_group=50_000,
    max_bad_rows=0,
    progress=True,
    rows=2_000_000,
    seed=2026,
):
    """Converts source files, or makes the synthetic data; -> the summary that `format_summary` prints.

    The source is streamed, never held whole. With a split it is first converted to a temporary data set in `output`, as
    large as the result, because a row's part depends on the number of good rows; only 9 bytes a row stay in memory.

    Args:
      format: one of `FORMATS`.
      input: for `movielens` its directory, for `synthetic` None, else a path or glob, or a list of them; a directory
        too for `parquet` and `tfrecord`.
      output: a directory that is not there, is empty, or holds an unfinished conversion, whose files are removed.
      spec: FeatureSpec; its `without_labels()` for data to predict on.
      split: as `random:0.8,0.1,0.1` (of the rows, by `split_seed`) or `time:0.8,0.1,0.1:timestamp` (by a column); makes
        output/train, output/valid, output/test, or with two fractions train and test. None: `output` is the data set.
      rows_per_file, rows_per_group: of the Parquet files; a row group is the unit of reading and of shuffling.
      max_bad_rows: how many rows that cannot be used may be left out.
      progress: show a bar (rows and rows/s) where stderr is a terminal.
      rows, seed: `synthetic` only: training rows (a tenth as many test rows come on top) and the generator's seed.

    Returns:
      dict of `output`, `seconds`, `bad_rows`, `parts`: DatasetInfo by part, `all` where there is no split; and `lists`:
      by bag and sequence, the figures of `Lengths`.

    Raises:
      UserError: input, spec and format do not fit, too many bad rows, or `output` holds anything else, an input, or
        lies in an input. What was written until then lacks its `_dataset.json` and no reader takes it for a data set.
    """
    if format not in FORMATS:
        raise UserError(f"format {format!r} is not one of {', '.join(FORMATS)}")
    if rows_per_group < 1 or rows_per_file < 1:
        raise UserError(f"rows per group ({rows_per_group}) and rows per file ({rows_per_file}) must be at least 1")
    split = Split.parse(split) if split else None
    output, start, lengths = pathlib.Path(output), time.perf_counter(), {}
    bad_rows = BadRows(max_bad_rows, unit="row" if format in TYPED else "line")
    if format == "synthetic" and (split or input or not spec.labelled):
        raise UserError(
            "format synthetic makes its own data, in parts train and test, with labels: no input, no split, "
            "and nothing unlabelled"
        )
    if format != "synthetic":
        _refuse_inputs(output, format, input)
    _refuse_data_set(output)
    with Unfinished(output, "conversion") as directory:
        directory.clear()

        def make_writer(part):
            return DatasetWriter(directory, part, spec, rows_per_file, rows_per_group)

        with progress_bar(progress) as bar:
            if format == "synthetic":
                writers, extra = synthetic.write(make_writer, directory.add(synthetic.SAMPLE), spec, rows, seed, bar)
            else:
                time_column = split.column if split else None
                encoder = Encoder(spec, bad_rows, time_column)
                tables = encoded(SOURCES[format](input, spec, bad_rows, time_column), encoder)
                writers, extra = _write(tables, split, split_seed, make_writer, bar), {}
                lengths = encoder.lengths
                _warn_of_single(lengths, spec)
        directory.clear(f"{_UNSPLIT}/")
        for writer in writers.values():
            writer.close()
        if not sum(w.statistics.rows for w in writers.values()):
            raise UserError(f"input {input}: it has no rows")
        train = next(iter(writers.values())).statistics.to_dict()["fitted"]
        parts = {part: writer.finish(bad_rows.count, train, extra) for part, writer in writers.items()}
        directory.finish()
    return dict(
        output=str(output),
        seconds=time.perf_counter() - start,
        bad_rows=bad_rows.count,
        parts=parts,
        lists={name: each.to_dict() for name, each in lengths.items()},
    )


def _warn_of_single(lengths, spec):
    for feature in (f for f in spec.sparse if f.combiner and lengths[f.name].all_single):
        _log.warning(
            "list feature %r, column %r: each of its %d lists has one value, so %r may not be what separates values: "
            "check the feature's 'separator', and brackets = true for '[1, 2]'",
            feature.name,
            feature.column,
            lengths[feature.name].single,
            feature.separator,
        )


def _refuse_inputs(output, format, input):
    """Raises UserError where the output holds an input or lies in one."""
    sources = [input] if isinstance(input, (str, pathlib.Path)) else input or []
    if format == "movielens":
        sources = [pathlib.Path(source) / name for source in sources for name in movielens.FILES]
        sources = [source for source in sources if source.exists()]
    refuse_overlap(output, sources, [file.path for file in list_files(sources)] if sources else [])


def _refuse_data_set(output):
    """Raises UserError where the output is a finished data set, or a file."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output {output}: is a file; give a directory")
    for file in (output / dataset.FILE, *output.glob(f"*/{dataset.FILE}")):
        if file.exists() and not (output / MARKER).exists():
            raise UserError(f"output {output}: holds a data set already ({file}); remove it or give another directory")


def _write(tables, split, split_seed, make_writer, bar):
    """Writes encoded tables; -> writers by part, the first one the training part's."""
    unsplit, times = make_writer(_UNSPLIT if split else ""), []
    for table in tables:
        if TIME in table.column_names:
            times.append(table[TIME].to_numpy())
            table = table.drop_columns([TIME])
        unsplit.write(table)
        bar.update(len(table))
    unsplit.close()
    if not split:
        return {"all": unsplit}
    writers = {part: make_writer(part) for part in split.parts}
    part_of = split.assign(unsplit.statistics.rows, split_seed, np.concatenate(times) if times else None)
    start = 0
    bar.reset()
    for group in unsplit.row_groups():
        parts = part_of[start : start + len(group)]
        for number, writer in enumerate(writers.values()):
            writer.write(group.take(np.flatnonzero(parts == number)))
        start += len(group)
        bar.update(len(group))
    return writers


def progress_bar(progress, what=None):
    """-> a bar of rows and rows/s where stderr is a terminal."""
    return tqdm.tqdm(desc=what, unit=" rows", unit_scale=True, disable=not (progress and sys.stderr.isatty()))


def encoded(chunks, encoder, skip=0):
    """Yields encoded tables; the source is read in a thread of its own.

    Args:
      skip: rows that are left out, from the first one on, all good ones. A chunk of them gives an empty table, by which
        the caller sees that it goes on.
    """
    with contextlib.closing(encoder), ReadAhead(chunks, 2, name="reading the input") as chunks:
        for chunk in chunks:
            out = min(skip, len(chunk.table))
            skip -= out
            table = encoder.encode(chunk.slice(out) if out else chunk)
            encoder.see_labels(chunk.table)  # those of skipped rows too
            yield table
        encoder.check_labels()
