"""How an Estimator runs, apart from what it computes."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.training_configs import PublishConfig

PLAIN_NAMES, GRAPH_NAMES = "plain", "graph"
LOG_NAMES = (PLAIN_NAMES, GRAPH_NAMES)


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings, title="Run"):
    """The settings of a run.

    Attributes:
      warm_start: see `warm_start.WarmStart`. It is ignored once the model has a checkpoint.
      grace_secs: see `TrainingSteps`.
      keep_checkpoint_max: see `retention`.
      full_checkpoint_every: 1 always writes all rows. A damaged file damages all checkpoints up to the next full one.
      mixed_precision: see `ranks.horovod.config_proto`. Evaluation, prediction and exports always use float32.
      uneven_inputs: `error` raises an error that names the rank and the step; for `pad` see `padded_input`.
      equal_inputs: see `EqualBatchesHook`.
      model_dir: model directory, used if `Estimator` does not get one.
      session_config: `tf.compat.v1.ConfigProto` with the options of each session, or None. `threads`, the GPU of
        `local_rank` and `mixed_precision` override its options.
      tracker: an `MlflowRun`, which gets the figures of a training on rank 0, or None.

    Raises:
      UserError: a setting is out of its range, or settings exclude each other.
    """

    seed: int = setting(1, "seed of the order of the data, the dense variables and the new embedding rows", minimum=0)
    deterministic: bool = setting(
        False,
        "make runs with equal settings, data and numbers of workers end with bit-identical models, also if they are "
        "interrupted; the workers of a host add up their row gradients, as one worker would with all their batches",
    )
    warm_start: str = setting(
        "",
        "start a new model from the rows and dense variables of another one: a model directory, the directory of a "
        "checkpoint, or a directory of Parquet files with the columns key and row; or a URL",
        "path",
    )
    threads: int = setting(
        int(os.environ.get("CTR_TRAINER_THREADS", "0")),
        "CPU threads of a worker; 0 leaves the choice to TensorFlow",
        minimum=0,
        alike=False,
    )
    mixed_precision: str = setting(
        "none",
        "precision of the matrix products while training; all else stays float32. bfloat16: on CPUs with AVX-512 BF16 "
        "or AMX; float16: on GPUs, with loss scaling",
        choices=("none", "bfloat16", "float16"),
    )
    prefetch_batches: int = setting(
        4,
        "batches that are read and looked up ahead of the current step; 0 reads in the training thread",
        "batches",
        minimum=0,
    )
    save_checkpoints_steps: int | None = setting(
        None,
        "steps between checkpoints; 0 saves at the end only. 1000 without --save_checkpoints_secs",
        "steps",
        minimum=0,
    )
    save_checkpoints_secs: float = setting(
        0.0,
        "seconds between checkpoints, by the clock of rank 0; 0 for --save_checkpoints_steps",
        "seconds",
        minimum=0.0,
    )
    validation_window_secs: float = setting(
        3600.0,
        "training from a stream: length of the windows of event time for which the log shows auc_event_window, "
        "xentropy_event_window and copc_event_window, computed before the model trains on the examples; 0 shows none",
        "seconds",
        minimum=0.0,
        alike=False,
    )
    grace_secs: float = setting(
        30.0,
        "longest time to end after SIGTERM or Ctrl-C: all workers finish the step and save a checkpoint; 0 ends at "
        "once, without a checkpoint",
        "seconds",
        minimum=0.0,
    )
    keep_checkpoint_max: int = setting(
        5,
        "number of newest checkpoints to keep, in addition to the best one and to one that shares no files with them; "
        "0 keeps all",
        "checkpoints",
        minimum=0,
    )
    full_checkpoint_every: int = setting(
        10,
        "checkpoints from one full checkpoint to the next; those between hold the rows that changed",
        "checkpoints",
        minimum=1,
        flag=None,
    )
    log_steps: int = setting(100, "steps between two lines of the log", "steps", minimum=1)
    log_secs: float = setting(
        30.0, "seconds between the log's [RunStatus] lines of latencies", "seconds", minimum=0.1, flag=None
    )
    log_names: str = setting(
        PLAIN_NAMES,
        "names in the log. plain: names such as xentropy_mean; graph: names of the graph such as xentropy_mean:0, and "
        "the messages of TensorFlow 1 programs",
        choices=LOG_NAMES,
    )
    summary_steps: int = setting(
        100,
        "steps between two TensorBoard summaries, which are written together with a line of the log; 0 writes none",
        "steps",
        minimum=0,
    )
    profile_steps: tuple[int, ...] = setting(
        (),
        "first and last step to trace on every rank; writes Chrome traces to MODEL_DIR/profile, and the summary at the "
        "end shows where the time of a step goes, from the steps after the last traced one",
        "steps",
        minimum=1,
        example=(100, 200),
    )
    uneven_inputs: str = setting(
        "error",
        "what a training does if the `tf.data.Dataset` of one rank ends before another rank's: end the job, or "
        "continue with batches that count nothing until all have ended",
        choices=("error", "pad"),
        flag=None,
    )
    equal_inputs: str = setting(
        "error",
        "what a training does if the `tf.data.Dataset`s of several ranks begin with the same batches, so that each "
        "example would count several times: end the job, or allow it",
        choices=("error", "allow"),
        flag=None,
    )
    dense_exchange: str = setting(
        "auto",
        "how workers on CPUs exchange dense gradients. auto: through shared memory within a host, and by Horovod "
        "between hosts; horovod: by Horovod everywhere, as on GPUs. --fp16_allreduce needs horovod. "
        "The log names the choice and its reason",
        choices=("auto", "horovod"),
    )
    embedding: EmbeddingConfig = EmbeddingConfig()
    publish: PublishConfig = PublishConfig()
    model_dir: str | None = None
    session_config: Any = None
    tracker: Any = None

    def conflicts(self) -> Iterator[str]:
        if self.save_checkpoints_steps and self.save_checkpoints_secs:
            yield "{save_checkpoints_steps} and {save_checkpoints_secs} exclude each other: give one of them"
        steps = self.profile_steps
        if steps and not (len(steps) == 2 and steps[0] < steps[1]):
            yield "{profile_steps}: expected the first and a later last step to profile, as 100,200"
        if not self.deterministic:
            return
        if self.save_checkpoints_secs:
            yield (
                "with {deterministic:name} identical runs save at the same steps, and {save_checkpoints_secs} goes by "
                "the clock: use {save_checkpoints_steps:name}"
            )

    def replace(self, **changes: Any) -> "RunConfig":
        """Returns the settings with other values, given by name."""
        return dataclasses.replace(self, **changes)

    @property
    def checkpoint_steps(self) -> int:
        """Steps between checkpoints; 0 if the period is not in steps."""
        if self.save_checkpoints_steps is not None:
            return self.save_checkpoints_steps
        return 0 if self.save_checkpoints_secs else 1000
