"""Flags of the data that a model reads."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Data"""

    train_data: str = flag(
        "", "to train on: a directory that `convert` wrote; with --feature_spec also Parquet, TFRecords or CSV", "path"
    )
    eval_data: str = flag(
        "", "to evaluate or predict on: likewise; the model's own feature spec is the default", "path"
    )
    feature_spec: str = flag(
        "", "of Parquet, TFRecords or CSV (.csv, .tsv) made elsewhere, read without conversion", "path"
    )
    data_cache: str = flag(
        "",
        "where TFRecords and CSV are converted on first use; all workers must see it; by default MODEL_DIR/data_cache",
        "path",
    )
    batch_size: int = flag(1024, "of each worker", "examples", minimum=1)
    epochs: int = flag(1, "passes over the training data; 0 goes on until --max_steps", "epochs", minimum=0)
    shuffle: bool = flag(True, "shuffle by row group and within a buffer, anew each epoch")
    prefetch_batches: int = flag(
        4, "batches read and looked up ahead; 0 does both in the training thread", "batches", minimum=0
    )
    num_readers: int = flag(
        1,
        "threads of each worker that read and decode its data ahead, beside the training thread; the batches and their "
        "order are the same for any number. Each holds some 200,000 rows more in memory. Of --train_data and "
        "--eval_data, not of a tf.data input; e.g. --num_readers=2 where `read sample` is long and a core is free",
        "threads",
        minimum=1,
    )
