"""Parquet made elsewhere as a reader's source: strings are hashed while they are read."""

import contextlib
import dataclasses
import sys

import numpy as np
import pyarrow as pa
import tqdm

from ctr_trainer.data import parquet, typed
from ctr_trainer.data.badrows import BadRows
from ctr_trainer.data.columns import label_columns
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.labels import Positives
from ctr_trainer.data.listing import SourceFile, list_files
from ctr_trainer.data.source import ParquetGroups, Source
from ctr_trainer.data.statistics import Statistics

_ROWS = 50_000  # looked at for labels at a time
FITTED = ("standardize", "minmax")  # transforms that need the training data's statistics


class ForeignParquet(Source):
    """Parquet files with the columns of a feature spec; a group is a row group, encoded when it is read.

    A row that cannot be used ends the reading: which rows there are must not change from epoch to epoch, so leaving
    some out is the conversion's.

    Args:
      layout: what `scan` gave; the same on every worker.
      spec: FeatureSpec.
      statistics: of the training data, by dense feature.
      labels_needed: whether a row whose label is missing or none ends the reading; else its label is NaN.
    """

    def __init__(self, layout, spec, statistics, labels_needed=True):
        self.name, self.spec, self.statistics = layout["name"], spec, statistics
        self._layout = layout
        self._wanted, self._labels_needed = typed.uses(spec), labels_needed
        self._files = {path: SourceFile(path, partitions) for path, partitions, _ in layout["files"]}
        files = [(path, rows) for path, _, rows in layout["files"]]
        self._groups = ParquetGroups(files, "the files must stay as they are while a run reads them")
        self.group_rows = self._groups.rows
        self._first = [sum(rows[:number]) for _, rows in files for number in range(len(rows))]
        self._bad_rows, self._encoder = BadRows(unit="row"), None

    def read(self, group):
        """-> the encoded table of a row group.

        Raises:
          UserError: a file is not the one that was scanned, lacks a column, or has a row that cannot be used.
        """
        keys = [name for name, use in self._wanted.items() if use.keys_only]
        table = self._groups.read(group, columns=list(self._wanted), dictionaries=keys)
        file = self._files[self._groups.place(group)[0]]
        table = file.complete(table, self._wanted)
        typed.check(self._wanted, table.column_names, file.path, self.spec)
        if self._encoder is None:
            self._encoder = Encoder(self.spec, self._bad_rows, threads=1, labels_needed=self._labels_needed)
        numbers = self._first[group] + 1 + np.arange(len(table))
        chunk = typed.as_chunk(table, self._wanted, file.path, numbers, self._bad_rows)
        return self._encoder.encode(chunk)

    def label_means(self, advanced):
        """As `Source`; one pass over the labels' columns, and that of a feature: a spec has to have one."""
        dense = self.spec.dense[:1]
        sparse = () if dense else self.spec.sparse[:1]
        part = dataclasses.replace(self.spec, dense=dense, sparse=sparse, ids=(), weight=None, limits=())
        statistics, columns = Statistics(part), ForeignParquet(self._layout, part, {})
        with contextlib.closing(columns):
            groups = range(len(self.group_rows))
            for group in _bar(groups, f"labels of {self.name}", " row groups", True, advanced):
                statistics.add(columns.read(group))
        return statistics.to_dict()["label_means"]

    def reopened(self):
        return ForeignParquet(self._layout, self.spec, self.statistics, self._labels_needed)

    def close(self):
        self._groups.close()
        if self._encoder is not None:
            self._encoder.close()
        self._encoder = None


def scan(source, spec, progress=True, advanced=lambda text: None):
    """Reads the footers of Parquet files; -> their layout, JSON-able: files, row groups and their rows.

    `labelled` says whether all files have the columns of the labels, which those of an unlabelled spec may lack.

    Args:
      source: as `list_files` takes it.
      spec: FeatureSpec, of which every file must have the columns.
      progress: show a bar where stderr is a terminal.
      advanced: f(text), called each time that it has gone on.

    Raises:
      UserError: no such file, one that is not Parquet, one that lacks a column, or a label whose `positive` none has.
    """
    wanted, layout, labelled = typed.uses(spec), [], True
    for file in _bar(list_files(source), f"scanning {source}", " files", progress, advanced):
        with parquet.open_file(file.path) as opened:
            parquet.own_columns(file, opened, wanted, spec)
            names = {*opened.schema_arrow.names, *file.partitions}
            labelled = labelled and names.issuperset(label.column for label in spec.labels)
            rows = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
        layout.append((file.path, file.partitions, rows))
    for label in label_columns(spec).values():
        _check_positive(source, label, wanted[label.column], spec)
    return {"name": str(source), "files": layout, "labelled": labelled}


def _check_positive(source, label, use, spec):
    """Raises UserError where a label's `positive` never occurs; reads until it does: as a rule, the first block."""
    positives, wanted = Positives(label, spec.csv.label_suffix), {label.column: use}
    for file in list_files(source):
        if positives.found:
            return
        with parquet.open_file(file.path) as opened:
            present = [name for name in wanted if name in opened.schema_arrow.names]
            for batch in opened.iter_batches(_ROWS, columns=present, use_threads=False):
                table = file.complete(pa.Table.from_batches([batch]), wanted)
                every = BadRows(len(table), unit="row")
                positives.add(
                    typed.as_chunk(table, wanted, file.path, np.arange(len(table)), every).table[label.column]
                )
                if positives.found:
                    return
    positives.check()


def fit_statistics(source, spec, progress=True, advanced=lambda text: None):
    """One pass over the features whose transform or quantiles need statistics; -> dict by feature, empty if none does.

    Args:
      source: as `list_files` takes it.
      spec: FeatureSpec.
      progress: show a bar where stderr is a terminal.
      advanced: f(text), called each time that it has gone on.

    Raises:
      UserError: a row cannot be used.
    """
    dense = tuple(f for f in spec.dense if f.transform in FITTED)
    quantiles = tuple(f for f in spec.sparse if f.quantiles)
    if not dense and not quantiles:
        return {}
    part = dataclasses.replace(spec, dense=dense, sparse=quantiles, ids=(), weight=None, limits=())
    statistics, bad_rows = Statistics(part), BadRows(unit="row")
    with contextlib.closing(Encoder(part, bad_rows)) as encoder:
        chunks, what = parquet.read(source, part, bad_rows), f"statistics of {source}"
        for chunk in _bar(chunks, what, " blocks", progress, advanced):
            statistics.add(encoder.encode(chunk))
    return statistics.to_dict()["fitted"]


def _bar(items, what, unit, progress, advanced):
    bar = tqdm.tqdm(items, desc=what, unit=unit, disable=not (progress and sys.stderr.isatty()))
    for number, item in enumerate(bar, 1):
        yield item
        advanced(f"{what}: {number:,}{unit}")
