"""Settings of the workers of a job: how they wait for each other, and how they exchange the dense variables."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class WorkersSettings(Settings, title="Workers"):
    """How workers wait for each other, and exchange the dense variables."""

    pin_cores: bool = setting(
        True, "keep each of several workers of a machine on its own share of the cores", alike=False
    )
    stall_timeout: float = setting(1800.0, "longest wait for another rank; then the job ends", "seconds", minimum=1.0)
    stall_warning: float = setting(
        60.0, "wait after which the log names the rank and the phase waited for; 0 for never", "seconds", minimum=0.0
    )
    dense_exchange: str = setting(
        "auto",
        "way of the dense gradients between workers; shared_memory: through memory that the workers of one host share; "
        "hosts: the same within each host, then hvd.DistributedOptimizer between one worker per host; horovod: "
        "hvd.DistributedOptimizer between all workers; auto: shared_memory on the processors of one host, hosts on "
        "those of several, horovod on GPUs. --fp16_allreduce, --overlap_allreduce, --autotune, --autotune_log and "
        "--horovod_timeline make it horovod. The log names what was taken, and why",
        choices=("auto", "shared_memory", "hosts", "horovod"),
    )
    autotune: bool = setting(False, "let Horovod search for its best settings while training, and write --autotune_log")
    autotune_log: str = setting(
        "",
        "file that --autotune writes, MODEL_DIR/autotune.csv if not given; without --autotune: settings to take",
        "path",
    )
    horovod_timeline: str = setting("", "Chrome trace of every exchange between the workers, by rank 0", "path")
