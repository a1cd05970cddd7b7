"""Flags of `convert`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class ConvertFlags(Settings, title="Convert"):
    """Convert."""

    format: str = setting(
        "",
        "format of the input",
        choices=("criteo", "movielens", "csv", "parquet", "tfrecord", "libsvm", "libffm", "synthetic"),
    )
    input: str = setting(
        "", "file, files (comma separated), glob, or directory (not of csv and criteo); or a URL", "path"
    )
    output: str = setting("", "directory to write, or its URL; with --infer the feature spec's file", "path")
    infer: bool = setting(
        False, "write a first feature spec for a csv, parquet, libsvm or libffm input, and convert nothing"
    )
    label: str = setting("", "label's column, with --infer; guessed where it is not given")
    feature_spec: str = setting(
        "", "feature spec; criteo, libsvm, movielens and synthetic have one of their own", "path"
    )
    unlabelled: bool = setting(False, "convert data without labels, to predict on: neither labels nor weights are read")
    split: str = setting(
        "", "shares of the outputs: none, or e.g. random:0.8,0.1,0.1 or time:0.8,0.1,0.1:timestamp", "shares"
    )
    split_seed: int = setting(2026, "seed of a random split", minimum=0)
    rows: int = setting(
        2_000_000, "training rows of the synthetic data; a tenth is added to test on", "rows", minimum=1
    )
    synthetic_seed: int = setting(1, "seed of the synthetic data", minimum=0)
    rows_per_file: int = setting(1_000_000, "rows of an output file", "rows", minimum=1)
    rows_per_group: int = setting(50_000, "rows of a Parquet row group", "rows", minimum=1)
    max_bad_rows: int = setting(0, "rows that may be unreadable; each is named and counted", "rows", minimum=0)
    engine: str = setting(
        "local",
        "where to convert: on this machine, or on a Spark cluster that sees the same paths",
        choices=("local", "spark"),
    )
    num_threads: int = setting(0, "threads that encode blocks of the input; 0: one per core", "threads", minimum=0)
