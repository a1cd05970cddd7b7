"""Converts source files to a data set: Parquet files of keys, numbers and labels."""

import contextlib
import functools
import os
import posixpath
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tqdm

from ctr_trainer.data import dataset, parquet
from ctr_trainer.data.blocks import TIME, BadRows, Block
from ctr_trainer.data.conversion import delimited, libsvm, synthetic, tfrecord
from ctr_trainer.data.conversion.encoded_blocks import encoded
from ctr_trainer.data.conversion.leakage import warn_of_leaks
from ctr_trainer.data.conversion.writer import DatasetWriter, Written
from ctr_trainer.data.dataset import DatasetInfo, Split
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.source import ConvertedData, Input, SourceFile, list_files, named
from ctr_trainer.data.statistics import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.outputs import UNFINISHED, FileList, refuse_overlap, unfinished
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError, listed

# f(files, spec or None for all columns, column of a split by time or None) -> the blocks of the files, in order.
SOURCES: dict[str, Callable[[Sequence[SourceFile], FeatureSpec | None, str | None], Iterable[Block]]] = {
    "criteo": functools.partial(delimited.read, form=delimited.CRITEO),
    "csv": delimited.read,
    "libffm": functools.partial(libsvm.read, pattern=libsvm.OF_FIELD),
    "libsvm": libsvm.read,
    "parquet": parquet.read,
    "tfrecord": tfrecord.read,
}
TYPED = ("parquet", "tfrecord")  # Formats with typed columns. Messages about them give row numbers, not line numbers.
FORMATS = (*SOURCES, "synthetic")
_UNSPLIT = ".unsplit"


def convert(
    format: str,
    input: Input | None,
    output: str | os.PathLike,
    spec: FeatureSpec,
    split: str | None = None,
    split_seed: int = 2026,
    rows_per_file: int = 1_000_000,
    rows_per_group: int = 50_000,
    max_bad_rows: int = 0,
    progress: bool = True,
    rows: int = 2_000_000,
    seed: int = 2026,
    num_threads: int = 0,
    advanced: Callable[[int], object] = lambda rows: None,
    warns: bool = True,
) -> dict[str, Any]:
    """Converts source files to a data set, or generates the synthetic data.

    The source is streamed and never completely in memory. With a split, it is first converted to a temporary data set
    in `output`, as large as the result, because a row's part depends on the number of good rows. Memory: about 0.2 GB
    per thread; with a split, 9 bytes per row in addition.

    The data set is byte-identical for any number of threads.

    Args:
      format: one of `FORMATS`.
      input: see `list_files`; `synthetic` takes None.
      output: directory to write, or its URL. It must be absent or empty, or contain an unfinished conversion, which is
        removed.
      spec: FeatureSpec of the columns; for data to predict on, `spec.without_labels()`.
      split: None or `none` makes `output` the data set. `random:0.8,0.1,0.1` splits the rows at random, with
        `split_seed`; `time:0.8,0.1,0.1:timestamp` splits them by the column `timestamp`. Three fractions make
        output/train, output/valid and output/test; two fractions make output/train and output/test.
      split_seed: seed of a random split.
      rows_per_file, rows_per_group: rows per Parquet file and per row group, the unit of reading and of shuffling.
      max_bad_rows: number of unusable rows that the conversion may leave out.
      progress: whether to show a bar (rows and rows/s) if stderr is a terminal.
      rows: `synthetic` only: number of training rows. A tenth of this number is added as test rows.
      seed: `synthetic` only: seed of the generator.
      num_threads: number of blocks of the input to encode concurrently; 0 for one per core of this process.
      advanced: f(number of rows so far), called after each block.
      warns: whether to log a warning for each feature that leaks the label.

    Returns:
      dict: `output`, `seconds`, `bad_rows`, `parts` (dict of part -> DatasetInfo; without a
      split, the only part is `all`) and `lists` (see `Observations.lists`).

    Raises:
      UserError: input, spec and format do not match; there are too many bad rows; or `output` contains other files or
        an input, or is inside an input. A conversion that fails removes its files. If it is killed, its unfinished
        parts have no `_dataset.json`, so readers reject them.
    """
    if format not in FORMATS:
        raise UserError(f"format {format!r} is not one of {', '.join(FORMATS)}")
    if rows_per_group < 1 or rows_per_file < 1:
        raise UserError(f"rows per group ({rows_per_group}) and rows per file ({rows_per_file}) must be at least 1")
    cut, target, start = Split.parse(split), path_of(output), time.perf_counter()
    observed, bad_rows = Observations(spec), bad_rows_of(format, max_bad_rows)
    if format == "synthetic":
        if cut or input or not spec.labelled:
            raise UserError(
                "format synthetic makes its own labelled data, in the parts train and test: leave out the input, the "
                "split and the setting unlabelled"
            )
    else:
        refuse_inputs(target, input)
    with new_data_set(target) as directory, contextlib.ExitStack() as stack:

        def make_writer(part: str) -> DatasetWriter:
            writer = DatasetWriter(directory.add, directory.directory, part, spec, rows_per_file, rows_per_group)
            stack.callback(writer.abandon)
            return writer

        with tqdm.tqdm(unit=" rows", unit_scale=True, disable=not (progress and sys.stderr.isatty())) as bar:
            extra: dict[str, Any] = {}
            if format == "synthetic":
                sample = directory.add(synthetic.SAMPLE)
                writers, extra = synthetic.write(make_writer, sample, spec, rows, seed, bar)
            else:
                column = cut.column if cut else None
                blocks = SOURCES[format](list_files(input or ()), spec, column)
                tables = encoded(blocks, spec, bad_rows.add, observed, column, num_threads, measured=not cut)
                writers = _write(tables, cut, split_seed, make_writer, bar, advanced)
                observed.check()
        directory.remove(f"{_UNSPLIT}/")
        for writer in writers.values():
            writer.close()
        if not sum(w.statistics.rows for w in writers.values()):
            raise UserError(f"input {listed(file.path for file in list_files(input or ()))}: it has no rows")
        parts = describe(directory, spec, writers, bad_rows.count, observed, extra)
    return result_of(target, start, bad_rows, parts, observed, warns)


@contextlib.contextmanager
def new_data_set(output: Path) -> Iterator[FileList]:
    """Opens a directory for a conversion. If the conversion fails, the directory is emptied.

    Raises:
      UserError: the output is a finished data set, or a file.
    """
    if output.exists() and not output.is_dir():
        raise UserError(f"output {output}: is a file; give a directory")
    for file in (output / dataset.FILE, *output.glob(f"*/{dataset.FILE}")):
        if file.exists() and not (output / UNFINISHED).exists():
            raise UserError(
                f"output {output}: contains a data set already ({file}); remove it or give another directory"
            )
    with unfinished(output, "conversion") as directory:
        directory.remove()
        try:
            yield directory
        except BaseException:
            directory.remove()  # A partial conversion is useless: the next conversion starts from the beginning.
            raise
        directory.marker.unlink()


def describe(
    directory: FileList,
    spec: FeatureSpec,
    parts: Mapping[str, Written],
    bad_rows: int,
    observed: Observations,
    extra: dict[str, Any] | None = None,
) -> dict[str, DatasetInfo]:
    """Writes the description of each part, which makes it a data set. Returns the descriptions; `all` is the part "".

    `parts` are by the names of their directories, the training part first; `extra` are further figures of the format.
    """
    fitted = next(iter(parts.values())).statistics.fitted() | observed.texts
    found = {}
    for name, part in parts.items():
        directory.add(*(posixpath.join(name, each) for each in (*(x.name_of_copy for x in spec.files), dataset.FILE)))
        found[name or "all"] = DatasetInfo(
            path=str(directory.directory / name),
            spec=spec,
            bad_rows=bad_rows,
            statistics=fitted,
            files=tuple(part.files),
            extra=extra or {},
            **part.statistics.to_dict(),
        )
    for info in found.values():
        info.write()
    return found


def bad_rows_of(format: str, budget: int = 0) -> BadRows:
    return BadRows(budget, unit="row" if format in TYPED else "line")


def result_of(
    output: Path,
    start: float,
    bad_rows: BadRows,
    parts: dict[str, DatasetInfo],
    observed: Observations,
    warns: bool = True,
) -> dict[str, Any]:
    """Logs warnings for features of a finished conversion that leak the label. Returns the result of `convert`.

    `start` is `time.perf_counter()` when the conversion started; the training part is the first of `parts`.
    """
    if warns:
        warn_of_leaks(ConvertedData(next(iter(parts.values())).path))
    return dict(
        output=str(output),
        seconds=time.perf_counter() - start,
        bad_rows=bad_rows.count,
        parts=parts,
        lists=observed.lists(),
    )


def refuse_inputs(output: Path, input: Input | None) -> None:
    """Raises UserError if the output contains an input or is inside one."""
    places = [name for name in named(input) if not isinstance(name, SourceFile)]
    refuse_overlap(output, places, [file.path for file in list_files(input or ())] if input else [])


def _write(
    tables: Iterable[tuple[pa.Table, Statistics | None]],
    split: Split | None,
    split_seed: int,
    make_writer: Callable[[str], DatasetWriter],
    bar: tqdm.tqdm,
    advanced: Callable[[int], object],
) -> dict[str, DatasetWriter]:
    """Writes encoded tables with their Statistics, if known. Returns each part's writer, the training part first."""
    unsplit, times = make_writer(_UNSPLIT if split else ""), []
    for table, statistics in tables:
        if TIME in table.column_names:
            times.append(table[TIME].to_numpy())
            table = table.drop_columns([TIME])
        unsplit.write(table, statistics)
        bar.update(len(table))
        advanced(unsplit.rows)
    unsplit.close()
    if not split:
        return {"": unsplit}
    writers = {part: make_writer(part) for part in split.parts}
    part_of = split.assign(unsplit.rows, split_seed, np.concatenate(times) if times else None)
    start = 0
    bar.reset()
    for group in unsplit.row_groups():
        parts = part_of[start : start + len(group)]
        for number, writer in enumerate(writers.values()):
            writer.write(group.take(np.flatnonzero(parts == number)))
        start += len(group)
        bar.update(len(group))
    return writers
