"""Flags of `convert`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ConvertFlags:
    """Convert"""

    format: str = flag(
        "",
        "of the input",
        choices=("criteo", "movielens", "csv", "parquet", "tfrecord", "libsvm", "libffm", "synthetic"),
    )
    input: str = flag("", "file, files (comma separated), glob, or directory (not of csv and criteo)", "path")
    output: str = flag("", "directory to write; with --infer the feature spec's file", "path")
    infer: bool = flag(
        False, "write a first feature spec for a csv, parquet, libsvm or libffm input, and convert nothing"
    )
    label: str = flag("", "with --infer: the label's column; guessed where it is not given")
    feature_spec: str = flag(
        "", "the feature spec; criteo, libsvm, movielens and synthetic have one of their own", "path"
    )
    unlabelled: bool = flag(False, "of data without labels, to predict on: neither labels nor weights are read")
    split: str = flag("", "none, or e.g. random:0.8,0.1,0.1 or time:0.8,0.1,0.1:timestamp", "shares")
    split_seed: int = flag(2026, "of a random split", minimum=0)
    rows: int = flag(2_000_000, "training rows of the synthetic data; a tenth is added to test on", "rows", minimum=1)
    synthetic_seed: int = flag(1, "of the synthetic data", minimum=0)
    rows_per_file: int = flag(1_000_000, "of an output file", "rows", minimum=1)
    rows_per_group: int = flag(50_000, "of a Parquet row group", "rows", minimum=1)
    max_bad_rows: int = flag(0, "rows that may be unreadable; each is named and counted", "rows", minimum=0)
