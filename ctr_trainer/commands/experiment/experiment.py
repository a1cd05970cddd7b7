"""The settings of an experiment: the model, the data and the training."""

import dataclasses

from ctr_trainer.models.params import ModelParams
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.train_settings import TrainSettings
from ctr_trainer.settings.training_configs import StreamConfig
from ctr_trainer.system.messages import log_lines


@dataclasses.dataclass(frozen=True)
class ModelSettings(Settings, title="Model"):
    """The model, and the directory of its checkpoints."""

    model_dir: str = setting(
        "", "directory, or its URL, of one model: its checkpoints, summaries and feature spec", "path"
    )
    model: str = setting(
        "deepfm",
        "name of a model in the list below, or a function of your own as my.module:model_fn. A --model_dir with "
        "checkpoints keeps the model and all settings of its graph",
    )
    model_params: tuple[str, ...] = setting(
        (),
        "settings that only this model has; --model=NAME --help lists them",
        "name=value",
        example=("cross_layers=3", "cross_rank=64"),
    )
    recipe: str = setting(
        "data",
        "defaults of the flags that you do not give. data: chosen from the size of --train_data; none: the fixed ones",
        choices=("data", "none"),
    )
    embedding_dim: int = setting(
        0, "width of the embedding of each feature; 0 takes the widths of the feature spec", "floats", minimum=0
    )
    resume_from: int = setting(
        0,
        "step of the checkpoint to resume from, for example to go back before a divergence; later checkpoints are "
        "renamed to set-aside-...; 0 takes the newest",
        "step",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class DataSettings(Settings, title="Data"):
    """The data, and how it is read."""

    train_data: str = setting(
        "",
        "data to train on: a directory that `convert` wrote; with --feature_spec also Parquet, TFRecords or CSV, or a "
        "stream, such as kafka://host:port,host:port/TOPIC; or a URL, such as s3://bucket/data",
        "path",
    )
    eval_data: str = setting(
        "",
        "data to evaluate or to predict, in any form of --train_data; it is read with the model's feature spec unless "
        "--feature_spec is given",
        "path",
    )
    next_data: bool = setting(
        False,
        "continue a model that was trained on other data with --train_data from its beginning; --epochs, --max_steps, "
        "schedules and early stopping count from there, and the same command resumes within the data",
    )
    feature_spec: str = setting(
        "", "feature spec (TOML) of Parquet, TFRecords or CSV (.csv, .tsv) that is read without `convert`", "path"
    )
    batch_size: int = setting(
        1024, "examples per batch and worker; K workers train on K times as many per step", "examples", minimum=1
    )
    epochs: int = setting(1, "passes over the training data; 0 trains until --max_steps", "epochs", minimum=0)
    max_steps: int = setting(
        0,
        "global step to stop at, counted over all runs of the model, or since --next_data began other data; 0 trains "
        "until --epochs are over",
        "steps",
        minimum=0,
    )
    shuffle_buffer: int = setting(
        200_000,
        "rows that are shuffled together, as are the row groups, differently in each epoch; each worker's memory holds "
        "them --num_readers + 2 times. 0 keeps the order of the files",
        "rows",
        minimum=0,
    )
    num_readers: int = setting(
        1,
        "threads per worker that read and decode data while training runs; any number gives the same batches in the "
        "same order. Raise it if `read sample` in the log is long and a core is free; each thread holds about 200,000 "
        "rows more in memory",
        "threads",
        minimum=1,
        alike=False,
    )


@dataclasses.dataclass(frozen=True)
class WorkersSettings(Settings, title="Workers"):
    """How workers wait for each other and exchange the dense variables."""

    stall_timeout: float = setting(
        1800.0,
        "longest wait for another rank; after it the job ends with an error that names the rank",
        "seconds",
        minimum=1.0,
    )


@dataclasses.dataclass(frozen=True)
class LogSettings(Settings, title="Log"):
    """The form of the log, and which workers write it."""

    log_ranks: str = setting(
        "all",
        "ranks that log; 0: rank 0 only, and of the other ranks only warnings and errors",
        choices=("all", "0"),
        alike=False,
    )
    log_format: str = setting(
        "plain",
        "form of the log's lines; json: each line of the log, and of an embedding service that the job starts, is one "
        "JSON object",
        choices=log_lines.FORMATS,
        alike=False,
    )
    track: str = setting(
        "none",
        "where else a training shows its settings, metrics and summary. mlflow: in a run of the server that the "
        "environment variable MLFLOW_TRACKING_URI names",
        choices=("none", "mlflow"),
        alike=False,
    )


@dataclasses.dataclass(frozen=True)
class Experiment(Settings):
    """The settings that the commands which train or use a model share; `build` creates objects from them.

    Attributes:
      model, data, stream, train, run, workers, log: see their classes.
      params: the params that all models have.
    """

    model: ModelSettings = ModelSettings()
    params: ModelParams = ModelParams()
    data: DataSettings = DataSettings()
    stream: StreamConfig = StreamConfig()
    train: TrainSettings = TrainSettings()
    run: RunConfig = RunConfig()
    workers: WorkersSettings = WorkersSettings()
    log: LogSettings = LogSettings()
