"""How an Estimator runs, apart from what it computes."""

import dataclasses

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.row_codec import find_codec
from ctr_trainer.embedding.table.sparse_optimizers import OptimizerSettings, find_optimizer
from ctr_trainer.messages.errors import UserError

UNEVEN_INPUTS = ("error", "pad")
ROW_COPIES = ("auto", "host", "worker")


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
    """Where the embedding rows live and how they are trained.

    Attributes:
      service: `auto` keeps the tables in the process for one worker and starts a local lookup service for several;
        `shared` has the workers of one host train the same rows in shared memory, see `SharedTable`;
        `host:port,host:port` uses running shards.
      optimizer: of `embedding.table.sparse_optimizers.OPTIMIZERS`.
      settings: of the optimizer.
      learning_rate: of the rows; see `embedding.worker.merging` for what changes with the number of workers.
      initial_accumulator: what the sum of squares of the two Adagrads and of FTRL starts at.
      init_stddev: standard deviation of a new row's embedding weights (uniform); linear weights start at 0.
      l2: of the rows that a step looks up, each distinct one once: the loss plus l2 / 2 * sum w^2.
      clip_norm: the largest norm of the gradient of all rows in a step of this worker; 0 for any.
      overlap_lookup: look a batch's rows up, and train them, beside the steps before and after it, where a core is
        free: a step's rows then lack the step before; see `RowPipeline`.
      row_copies: who keeps copies of the rows that a service has: each `host`, whose workers train one copy in memory
        that they share, see `HostRows`; or each `worker`, which syncs its own, see `RowCache`. `auto` is `host`, but
        `worker` with strict_sync, or on a system without such memory.
      sync_steps: steps between two syncs with the service; for how far a row may lag behind the others' updates, see
        `embeddings.Embeddings`.
      strict_sync: at a sync all workers push, meet at a barrier, then pull, so that every lookup sees every push of
        the window before; training stands still meanwhile.
      sync_merge: what becomes of the workers' changes of a row, of `embedding.worker.merging.MERGES`.
      sync_compression: `fp16` sends changes and rows as float16, `none` as they are; of `row_codec.CODECS`.
      timeout: seconds a lost service is retried for.
      service_shards: how many services `auto` starts for several workers, each a process with a share of every table's
        rows: as many as it takes where one core cannot merge what the workers push. See `docs/embedding_service.md`.
      service_restarts: how often a service that `auto` started and that is lost is started again; all workers then go
        back to the last checkpoint. With 0 the job stops.
      security_files: paths for `security.ClientSecurity.read`: of the token, the service's authority, this client's
        certificate and its key; "" where there is none.
    """

    service: str = "auto"
    optimizer: str = "adagrad"
    settings: OptimizerSettings = OptimizerSettings()
    learning_rate: float = 0.05
    initial_accumulator: float = 1e-4
    init_stddev: float = 0.01
    l2: float = 0.0
    clip_norm: float = 0.0
    overlap_lookup: bool = False
    row_copies: str = "auto"
    sync_steps: int = 30
    strict_sync: bool = False
    sync_merge: str = "adaptive"
    sync_compression: str = "none"
    timeout: float = 60.0
    service_shards: int = 1
    service_restarts: int = 0
    security_files: tuple[str, str, str, str] = ("", "", "", "")

    def __post_init__(self):
        try:
            find_optimizer(self.optimizer).check(self.optimizer, self.settings)
        except ValueError as error:
            raise UserError(f"the embedding rows: {error}") from None
        codec = find_codec(self.sync_compression)
        if self.row_copies not in ROW_COPIES:
            raise UserError(f"row_copies={self.row_copies}: choose one of {', '.join(ROW_COPIES)}")
        if self.service_shards < 1:
            raise UserError(f"service_shards={self.service_shards}: at least one service is needed")
        if self.service_shards > 1 and self.service != "auto":
            raise UserError(
                f"service_shards={self.service_shards} is for services that the job starts itself, and {self.service} "
                "names those that run: leave out service_shards, or use service=auto"
            )
        if self.service_restarts and self.service != "auto":
            raise UserError(
                f"service_restarts={self.service_restarts} is for a service that the job starts itself; of "
                f"{self.service} whoever runs it takes care: leave out service_restarts, or use service=auto"
            )
        if self.service == "shared" and (self.strict_sync or self.sync_compression != "none"):
            raise UserError("strict_sync and sync_compression are about syncs, and with service=shared there are none")
        if self.strict_sync and self.row_copies == "host":
            raise UserError(
                "strict_sync gives each worker the rows of the sync before, and with row_copies=host a step reads what "
                "the steps of other workers have just made of a row: leave out one of the two"
            )
        if self.strict_sync and self.overlap_lookup:
            raise UserError(
                "strict_sync is exact, and overlap_lookup trains a row a step late: leave out one of the two"
            )
        if self.strict_sync and not codec.is_exact:
            raise UserError(
                f"strict_sync is exact, and sync_compression={self.sync_compression} is not: leave out one of the two"
            )

    @property
    def copies_of_hosts(self):
        """Whether the workers of a host train one copy of the rows that a service has."""
        if self.row_copies != "auto":
            return self.row_copies == "host"
        return not self.strict_sync and SharedMemory.is_possible()


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The settings of a run; `tf.estimator.RunConfig`'s names where it had them.

    Attributes:
      tf_random_seed: of the dense variables and of new embedding rows.
      save_checkpoints_steps: steps between checkpoints; 0 saves at the end only; None for 1000 if no other period is
        given.
      save_checkpoints_secs: seconds between checkpoints, by rank 0's clock, see `periods.SecondsOfChief`; 0 for another
        period.
      save_checkpoints_epochs: epochs between checkpoints, counted from the very first one; 0 for another period.
      keep_checkpoint_max: how many of the newest checkpoints stay; 0 keeps all. One of the chain before theirs stays as
        well, see `retention`.
      full_checkpoint_every: at least every so many checkpoints all rows are written, otherwise those that changed since
        the checkpoint before; 1 always writes all. A damaged file costs all checkpoints up to the next full one.
      log_step_count_steps: steps between the log's lines.
      log_secs: seconds between the `[RunStatus]` lines of latencies.
      auc_window_steps: 0 logs the AUC since the start, n over the last n steps (rounded to log lines).
      save_summary_steps: steps between two points in TensorBoard, each made of a line of the log, the first one after
        that many steps; 0 writes no points.
      profile_steps: () or (first, last): the steps that every rank profiles, see `ProfileHook`.
      progress: whether rank 0 shows a progress line where standard error is a terminal.
      threads: CPU threads of this worker; 0 lets TensorFlow choose.
      mixed_precision: `bfloat16`, on CPUs, and `float16`, on GPUs with loss scaling, train with matrix products in
        these, see `device_config.config_proto`; evaluation, prediction and exports are float32 all the same.
      phase_steps: every so many steps one is traced, so that a run ends with what its steps' time went to and what load
        it made, see `StepTraceHook` and `LoadHook`; the first so many do not count; 0 measures nothing.
      prepared_runs: whether a step's fetches and feeds are prepared once, see `PreparedRuns`; False runs each step by
        `MonitoredTrainingSession.run`.
      prefetch_batches: how many batches are read and looked up ahead; 0 does both in the training thread.
      uneven_inputs: what a training does where the `tf.data.Dataset` of one rank ends before that of another: `error`
        ends the job, naming the rank and the step; `pad` has the rank go on with batches that count nothing, until
        all have ended, see `PaddedInput`.
      embedding: see `EmbeddingConfig`.
    """

    tf_random_seed: int = 1
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float = 0.0
    save_checkpoints_epochs: int = 0
    keep_checkpoint_max: int = 5
    full_checkpoint_every: int = 10
    log_step_count_steps: int = 100
    log_secs: float = 30.0
    auc_window_steps: int = 0
    save_summary_steps: int = 100
    profile_steps: tuple[int, ...] = ()
    progress: bool = False
    threads: int = 0
    mixed_precision: str = "none"
    phase_steps: int = 0
    prepared_runs: bool = True
    prefetch_batches: int = 4
    uneven_inputs: str = "error"
    embedding: EmbeddingConfig = EmbeddingConfig()

    def __post_init__(self):
        if self.uneven_inputs not in UNEVEN_INPUTS:
            raise UserError(f"uneven_inputs={self.uneven_inputs!r}: choose one of {', '.join(UNEVEN_INPUTS)}")
        names = ("save_checkpoints_steps", "save_checkpoints_secs", "save_checkpoints_epochs")
        given = [f"{name}={getattr(self, name):g}" for name in names if getattr(self, name)]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} exclude each other: give one of them")
        for name in names:
            if (getattr(self, name) or 0) < 0:
                raise UserError(f"{name}={getattr(self, name):g} must be at least 0")
        if self.phase_steps == 1:
            raise UserError(
                "phase_steps=1 would trace every step, and a traced one tells no times: name 2 or more, or 0"
            )
        steps = self.profile_steps
        if steps and not (len(steps) == 2 and 1 <= steps[0] < steps[1]):
            raise UserError(
                f"profile_steps={','.join(map(str, steps))}: expected the first and a later last step to profile, as "
                "100,200"
            )

    @property
    def checkpoint_steps(self):
        """Steps between checkpoints; 0 where there are none by steps."""
        if self.save_checkpoints_steps is not None:
            return self.save_checkpoints_steps
        return 0 if self.save_checkpoints_secs or self.save_checkpoints_epochs else 1000
