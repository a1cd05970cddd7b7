"""All settings of an experiment: what is trained, on what, and how."""

import dataclasses

from ctr_trainer.experiment.recipes import RECIPES
from ctr_trainer.models.params import ModelParams
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.stream_config import StreamConfig
from ctr_trainer.settings.train_settings import TrainSettings
from ctr_trainer.system.messages import log_lines


@dataclasses.dataclass(frozen=True)
class ModelSettings(Settings, title="Model"):
    """Which model is trained, and where its checkpoints lie."""

    model_dir: str = setting(
        "", "directory or URL for the checkpoints, summaries and feature spec of one model", "path"
    )
    model: str = setting(
        "deepfm",
        "one of the models listed below, or your own function as my.module:model_fn; if --model_dir has checkpoints, "
        "this and all that makes the model's graph is as they have it",
    )
    model_params: tuple[str, ...] = setting(
        (),
        "params that a model has of its own; --model=NAME --help lists them",
        "name=value",
        example=("cross_layers=3", "cross_rank=64"),
    )
    recipe: str = setting(
        "data",
        "preset of flags, each of which a given flag overrides; data: what suits the rows of --train_data, see "
        "--explain_defaults; none: the fixed defaults; bars: the optimizers, L2 of all rows, clipping, batch "
        "normalization, plateau and early stopping of FuxiCTR, as the BARS leaderboards have them",
        choices=tuple(RECIPES),
    )
    embedding_dim: int = setting(
        0, "width of every feature's embedding; 0 takes the feature spec's", "floats", minimum=0
    )
    resume_from: int = setting(
        0,
        "step of the checkpoint that `train` resumes from; later ones are renamed to set-aside-...; 0 for the newest",
        "step",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class DataSettings(Settings, title="Data"):
    """What a model reads."""

    train_data: str = setting(
        "",
        "data to train on: a directory that `convert` wrote; with --feature_spec also Parquet, TFRecords or CSV, or a "
        "stream, as kafka://host:port,host:port/TOPIC; or a URL, as s3://bucket/data",
        "path",
    )
    eval_data: str = setting(
        "", "data to evaluate or predict on, as --train_data; the model's own feature spec is the default", "path"
    )
    feature_spec: str = setting(
        "", "feature spec of Parquet, TFRecords or CSV (.csv, .tsv) made elsewhere, read without conversion", "path"
    )
    batch_size: int = setting(1024, "examples of a batch of each worker", "examples", minimum=1)
    epochs: int = setting(1, "passes over the training data; 0 for no limit, until --max_steps", "epochs", minimum=0)
    max_steps: int = setting(0, "global step to stop at; 0 for no limit, until --epochs are over", "steps", minimum=0)
    shuffle: bool = setting(True, "shuffle by row group and within a buffer, differently in each epoch")
    shuffle_buffer: int = setting(
        200_000,
        "rows that are shuffled together; memory holds --num_readers + 2 times as many",
        "rows",
        minimum=1,
    )
    num_readers: int = setting(
        1,
        "threads of each worker that read and decode its data ahead, concurrently with training; the batches and their "
        "order are the same for any number. Each holds some 200,000 rows more in memory. Of --train_data and "
        "--eval_data, not of a tf.data input; e.g. --num_readers=2 where `read sample` is long and a core is free",
        "threads",
        minimum=1,
        alike=False,
    )


@dataclasses.dataclass(frozen=True)
class WorkersSettings(Settings, title="Workers"):
    """How workers wait for each other, and exchange the dense variables."""

    pin_cores: bool = setting(
        True, "keep each of several workers of a machine on its own share of the cores", alike=False
    )
    stall_timeout: float = setting(1800.0, "longest wait for another rank; then the job ends", "seconds", minimum=1.0)
    stall_warning: float = setting(
        60.0,
        "wait after which the log names the rank and the phase waited for; 0 for never",
        "seconds",
        minimum=0.0,
        flag=None,
    )
    dense_exchange: str = setting(
        "auto",
        "how workers exchange dense gradients; shared_memory: through memory that the workers of one host share; "
        "hosts: the same within each host, then hvd.DistributedOptimizer between one worker per host; horovod: "
        "hvd.DistributedOptimizer between all workers; auto: shared_memory on the processors of one host, hosts on "
        "the processors of several, horovod on GPUs. --fp16_allreduce, --overlap_allreduce, --autotune, and "
        "--autotune_log make it horovod. The log names what was taken, and why",
        choices=("auto", "shared_memory", "hosts", "horovod"),
    )
    autotune: bool = setting(False, "let Horovod search for its best settings while training, and write --autotune_log")
    autotune_log: str = setting(
        "",
        "file that --autotune writes, MODEL_DIR/autotune.csv if not given; without --autotune: settings to take",
        "path",
    )


@dataclasses.dataclass(frozen=True)
class LogSettings(Settings, title="Log"):
    """What the log looks like."""

    log_format: str = setting(
        "plain",
        "form of the log's lines; json: each line of the log, and of a service started here, is one JSON object",
        choices=log_lines.FORMATS,
        alike=False,
    )


@dataclasses.dataclass(frozen=True)
class Experiment(Settings):
    """What the commands that train or use a model have in common; `build` makes the objects of it.

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
