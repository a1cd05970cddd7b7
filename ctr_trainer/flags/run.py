"""Flags of a run, apart from what it computes."""

import dataclasses
import os

from ctr_trainer.flags.define import flag
from ctr_trainer.messages import log_lines


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Run and logs"""

    threads: int = flag(
        int(os.environ.get("CTR_TRAINER_THREADS", "0")), "CPU threads of a worker; 0 lets TensorFlow choose", minimum=0
    )
    pin_cores: bool = flag(True, "keep each of several workers of a machine on its own share of the cores")
    mixed_precision: str = flag(
        "none",
        "matrix products of training in bfloat16, on CPUs with AVX-512 BF16 or AMX, or in float16, on GPUs, with loss "
        "scaling; all else stays float32",
        choices=("none", "bfloat16", "float16"),
    )
    prepared_runs: bool = flag(
        True, "prepare a step's fetches and feeds once, for less time; else each step is MonitoredTrainingSession.run"
    )
    phase_steps: int = flag(
        0, "trace a step in so many, to tell at the end what a step's time goes to; 0 does not", "steps", minimum=0
    )
    stall_timeout: float = flag(1800.0, "longest wait for another rank; then the job ends", "seconds", minimum=1.0)
    stall_warning: float = flag(
        60.0, "name a wait that is longer, and the rank and the phase that it is for; 0 never", "seconds", minimum=0.0
    )
    save_checkpoints_steps: int | None = flag(
        None,
        "between checkpoints; 0 saves at the end only; 1000 without --save_checkpoints_epochs and "
        "--save_checkpoints_secs",
        "steps",
        minimum=0,
    )
    save_checkpoints_epochs: int = flag(0, "between checkpoints; 0 for another period", "epochs", minimum=0)
    save_checkpoints_secs: float = flag(
        0.0, "between checkpoints, by rank 0's clock, at most two of --log_steps later", "seconds", minimum=0.0
    )
    keep_checkpoint_max: int = flag(
        5, "newest checkpoints that stay, besides one of the chain before theirs; 0 keeps all", "checkpoints", minimum=0
    )
    full_checkpoint_every: int = flag(
        10, "so many checkpoints a full one; those between hold what changed", "checkpoints", minimum=1
    )
    resume_from: int = flag(
        0,
        "step of the checkpoint that `train` goes on from; later ones are renamed to set-aside-...; 0 for the newest",
        "step",
        minimum=0,
    )
    log_steps: int = flag(100, "between the log's lines", "steps", minimum=1)
    log_secs: float = flag(30.0, "between the log's [RunStatus] lines of latencies", "seconds", minimum=0.1)
    log_format: str = flag(
        "plain",
        "json: each line of the log, and of a service started here, is one JSON object",
        choices=log_lines.FORMATS,
    )
    log_ranks: str = flag(
        "all", "chief: of ranks other than 0 the log has warnings and errors only", choices=log_lines.RANKS
    )
    auc_window_steps: int = flag(0, "log the AUC over so many steps; 0 since the start", "steps", minimum=0)
    summary_steps: int = flag(
        100, "between TensorBoard summaries, at the log's lines; 0 writes none", "steps", minimum=0
    )
    profile_steps: tuple[int, ...] = flag(
        (), "FIRST,LAST: profiles and Chrome traces of these steps of every rank, in MODEL_DIR/profile"
    )
    horovod_timeline: str = flag("", "of every exchange between the workers, a Chrome trace by rank 0", "path")
