"""Settings of the data that a model reads."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class DataSettings(Settings, title="Data"):
    """What a model reads."""

    train_data: str = setting(
        "",
        "data to train on: a directory that `convert` wrote; with --feature_spec also Parquet, TFRecords or CSV; or a "
        "URL, as s3://bucket/data",
        "path",
    )
    eval_data: str = setting(
        "", "data to evaluate or predict on, as --train_data; the model's own feature spec is the default", "path"
    )
    feature_spec: str = setting(
        "", "feature spec of Parquet, TFRecords or CSV (.csv, .tsv) made elsewhere, read without conversion", "path"
    )
    data_cache: str = setting(
        "",
        "directory where TFRecords and CSV are converted on first use; all workers must see it; by default "
        "MODEL_DIR/data_cache",
        "path",
    )
    batch_size: int = setting(1024, "examples of a batch of each worker", "examples", minimum=1)
    epochs: int = setting(1, "passes over the training data; 0 goes on until --max_steps", "epochs", minimum=0)
    max_steps: int = setting(0, "global step to stop at; 0 goes on until --epochs are over", "steps", minimum=0)
    shuffle: bool = setting(True, "shuffle by row group and within a buffer, anew each epoch")
    num_readers: int = setting(
        1,
        "threads of each worker that read and decode its data ahead, beside the training thread; the batches and their "
        "order are the same for any number. Each holds some 200,000 rows more in memory. Of --train_data and "
        "--eval_data, not of a tf.data input; e.g. --num_readers=2 where `read sample` is long and a core is free",
        "threads",
        minimum=1,
        alike=False,
    )
