"""Every flag, in groups. A group is a frozen dataclass; its values are made once, at start, and handed on."""

import dataclasses
import os

from absl import flags as absl_flags

from ctr_trainer.errors import UserError


def _flag(default, text, unit="", choices=None, minimum=None):
    metadata = {"help": text, "unit": unit, "choices": choices, "minimum": minimum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """Model"""

    model_dir: str = _flag("", "directory of the checkpoints, summaries and feature spec of one model", "path")
    model: str = _flag("deepfm", "lr, deepfm, or your own function as my.module:model_fn")
    hidden_units: tuple[int, ...] = _flag((256, 128, 64), "widths of the hidden layers, comma separated", "units")
    dropout: float = _flag(0.0, "share of activations dropped while training", "share", minimum=0.0)
    embedding_dim: int = _flag(0, "width of every feature's embedding; 0 takes the feature spec's", "floats", minimum=0)


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Data"""

    train_data: str = _flag("", "directory to train on, as `convert` wrote it", "path")
    eval_data: str = _flag("", "directory to evaluate or predict on, as `convert` wrote it", "path")
    batch_size: int = _flag(1024, "of each worker", "examples", minimum=1)
    epochs: int = _flag(1, "passes over the training data; 0 goes on until --max_steps", "epochs", minimum=0)
    shuffle: bool = _flag(True, "shuffle by row group and within a buffer, anew each epoch")
    prefetch_batches: int = _flag(
        4, "batches read and looked up ahead; 0 does both in the training thread", "batches", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
    """Training"""

    max_steps: int = _flag(0, "global step to stop at; 0 goes on until --epochs are over", "steps", minimum=0)
    optimizer: str = _flag("adagrad", "of the dense variables", choices=("sgd", "adagrad", "adam"))
    learning_rate: float = _flag(0.02, "of the dense variables, for one worker", "1/step", minimum=0.0)
    scale_lr: str = _flag("linear", "how learning rates grow with the workers", choices=("linear", "sqrt", "none"))
    fp16_allreduce: bool = _flag(False, "send dense gradients as float16")
    seed: int = _flag(1, "of the data's order, the dense variables and new embedding rows", minimum=0)


@dataclasses.dataclass(frozen=True)
class _ClientFlags:
    """What a client of the service shows it, and expects of it"""

    token_file: str = _flag("", "file with the token of a service that asks for one", "path")
    service_ca: str = _flag("", "PEM of the authority that signed the service's certificate; turns on TLS", "path")
    service_cert: str = _flag("", "PEM of this client's certificate, where the service asks for one", "path")
    service_key: str = _flag("", "PEM of its key", "path")

    @property
    def security_files(self):
        """-> the arguments of `security.ClientSecurity.read`."""
        return self.token_file, self.service_ca, self.service_cert, self.service_key


@dataclasses.dataclass(frozen=True)
class EmbeddingFlags(_ClientFlags):
    """Embeddings and their service"""

    embedding_service: str = _flag(
        "auto",
        "auto: in the process for one worker, a local service for several; or running shards as host:port,host:port",
    )
    embedding_optimizer: str = _flag("adagrad", "of the embedding rows", choices=("sgd", "adagrad", "rowwise_adagrad"))
    embedding_learning_rate: float = _flag(0.05, "of the embedding rows, for one worker", "1/step", minimum=0.0)
    initial_accumulator: float = _flag(1e-4, "what Adagrad's state of a new row starts at", minimum=0.0)
    embedding_stddev: float = _flag(0.01, "standard deviation of a new row's weights", minimum=0.0)
    sync_steps: int = _flag(30, "steps between two syncs of the rows with the service", "steps", minimum=1)
    strict_sync: bool = _flag(
        False, "all workers push, meet, then pull at a sync: every lookup sees every push of the window before"
    )
    sync_compression: str = _flag("none", "how rows travel: as they are, or as float16", choices=("none", "fp16"))
    service_timeout: float = _flag(60.0, "how long a lost service is retried", "seconds", minimum=0.0)
    service_restarts: int = _flag(
        0, "how often a lost service of `auto` is started again, from the last checkpoint", "times", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Run and logs"""

    threads: int = _flag(
        int(os.environ.get("CTR_TRAINER_THREADS", "0")), "CPU threads of a worker; 0 lets TensorFlow choose", minimum=0
    )
    stall_timeout: float = _flag(1800.0, "longest wait for another rank; then the job ends", "seconds", minimum=1.0)
    save_checkpoints_steps: int = _flag(1000, "between checkpoints; 0 saves at the end only", "steps", minimum=0)
    keep_checkpoint_max: int = _flag(5, "checkpoints that stay; 0 keeps all", "checkpoints", minimum=0)
    full_checkpoint_every: int = _flag(
        10, "so many checkpoints a full one; those between hold what changed", "checkpoints", minimum=1
    )
    log_steps: int = _flag(100, "between the log's lines", "steps", minimum=1)
    log_secs: float = _flag(30.0, "between the log's [RunStatus] lines", "seconds", minimum=0.1)
    auc_window_steps: int = _flag(0, "log the AUC over so many steps; 0 since the start", "steps", minimum=0)
    summary_steps: int = _flag(100, "between TensorBoard summaries; 0 writes none", "steps", minimum=0)


@dataclasses.dataclass(frozen=True)
class ExportFlags:
    """Export"""

    export_dir: str = _flag("", "where a SavedModel is written; `train` writes it at its end", "path")


@dataclasses.dataclass(frozen=True)
class PredictFlags:
    """Predict"""

    output: str = _flag("", "Parquet file of the predictions; rank r of several writes part r beside it", "path")


@dataclasses.dataclass(frozen=True)
class ConvertFlags:
    """Convert"""

    format: str = _flag("", "of the input", choices=("criteo", "movielens", "csv", "synthetic"))
    input: str = _flag("", "file, files (comma separated), glob, or directory for movielens", "path")
    output: str = _flag("", "directory to write", "path")
    feature_spec: str = _flag("", "the feature spec; criteo, movielens and synthetic have one of their own", "path")
    split: str = _flag("", "none, or e.g. random:0.8,0.1,0.1 or time:0.8,0.1,0.1:timestamp", "shares")
    split_seed: int = _flag(2026, "of a random split", minimum=0)
    rows: int = _flag(2_000_000, "training rows of the synthetic data; a tenth is added to test on", "rows", minimum=1)
    synthetic_seed: int = _flag(1, "of the synthetic data", minimum=0)
    rows_per_file: int = _flag(1_000_000, "of an output file", "rows", minimum=1)
    rows_per_group: int = _flag(50_000, "of a Parquet row group", "rows", minimum=1)
    max_bad_rows: int = _flag(0, "rows that may be unreadable; each is named and counted", "rows", minimum=0)


@dataclasses.dataclass(frozen=True)
class ServeFlags:
    """Serve"""

    bind: str = _flag("127.0.0.1:0", "host:port to listen on; port 0 picks one", "address")
    data_dir: str = _flag("", "the only directory that snapshots are written to and read from", "path")
    token_file: str = _flag("", "file with the token that clients must send; needed off loopback", "path")
    tls_cert: str = _flag("", "PEM of the service's certificate; turns on TLS", "path")
    tls_key: str = _flag("", "PEM of its key", "path")
    tls_client_ca: str = _flag("", "PEM of the authority whose certificates clients must show", "path")
    metrics_port: int = _flag(-1, "where Prometheus reads /metrics; 0 picks a port, -1 is none", "port", minimum=-1)
    port_file: str = _flag("", "file that gets host:port once the service is ready", "path")
    save_at_exit: bool = _flag(True, "save all rows below --data_dir at SIGTERM, for --restore")
    restore: str = _flag("", "directory that such a save left, to start from", "path")
    exit_with_stdin: bool = _flag(False, "end when standard input closes, that is with the process that started it")


@dataclasses.dataclass(frozen=True)
class ServiceFlags(_ClientFlags):
    """Service"""

    service: str = _flag("", "the shards as host:port,host:port, in the order that the workers name them", "address")
    path: str = _flag("", "directory that `save` writes, inside the shards' --data_dir", "path")
    json: bool = _flag(False, "print one JSON object in place of a table")
    service_timeout: float = _flag(10.0, "how long a shard that does not answer is asked", "seconds", minimum=0.0)


EXPERIMENT = (ModelFlags, DataFlags, TrainingFlags, EmbeddingFlags, RunFlags, ExportFlags, PredictFlags)


def define(groups):
    """-> absl FlagValues with the flags of the groups."""
    values = absl_flags.FlagValues()
    for group in groups:
        for field in dataclasses.fields(group):
            _define(field, group.__doc__, values)
    return values


def read(group, values):
    """-> the group's dataclass, from parsed flags."""
    taken = {}
    for field in dataclasses.fields(group):
        value = values[field.name].value
        if field.type == tuple[int, ...]:
            value = _integers(field.name, value)
        taken[field.name] = value
    return group(**taken)


def require(group, *names):
    """Raises UserError where one of the named flags of a group's instance has no value."""
    for name in names:
        if not getattr(group, name):
            raise UserError(f"--{name} is missing: {group.__dataclass_fields__[name].metadata['help']}")


def _integers(name, texts):
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise UserError(f"--{name}={','.join(texts)}: expected integers, comma separated") from None


def _define(field, group, values):
    name, default, metadata = field.name, field.default, field.metadata
    unit = f" [{metadata['unit']}]" if metadata["unit"] else ""
    common = dict(help=metadata["help"] + unit, flag_values=values, module_name=group)
    if metadata["choices"]:
        absl_flags.DEFINE_enum(name, default or None, list(metadata["choices"]), **common)
    elif field.type is bool:
        absl_flags.DEFINE_bool(name, default, **common)
    elif field.type is int:
        absl_flags.DEFINE_integer(name, default, lower_bound=metadata["minimum"], **common)
    elif field.type is float:
        absl_flags.DEFINE_float(name, default, lower_bound=metadata["minimum"], **common)
    elif field.type == tuple[int, ...]:
        absl_flags.DEFINE_list(name, [str(part) for part in default], **common)
    else:
        absl_flags.DEFINE_string(name, default, **common)
