"""The settings of a job that `bench settings` varies, one at a time."""

import dataclasses

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.by_flag import by_flag

_MB = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class Variant:
    """One setting that differs from the default.

    Attributes:
      name: of the row, as `sync_steps=100`.
      flags: of `train`, behind the experiment's own.
      environment: (name, value) of variables.
    """

    name: str
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


MIXED_PRECISION = "mixed_precision"
# Axes that are flags of `train`, and the values tried beside the experiment's own.
FLAG_AXES = {
    "fp16_allreduce": (True, False),
    "accumulation_steps": (1, 2, 5, 10, 20),
    "dense_exchange": ("auto", "horovod"),
    "dense_sync_steps": (1, 10, 30),
    "sync_steps": (1, 10, 30, 100),
    "batch_size": (256, 512, 1024, 2048, 4096),
    "num_readers": (1, 2, 4),
    "embedding_service": ("auto", "shared"),
    MIXED_PRECISION: ("none", "bfloat16"),
}
_BY_HOROVOD = ("--dense_exchange=horovod",)
# Axes that are Horovod's variables. Its defaults are 128 MB, 1 ms and 0.
HOROVOD_AXES = {
    "tensor_fusion": tuple(
        Variant(f"tensor_fusion={size} MB", _BY_HOROVOD, environment=(("HOROVOD_FUSION_THRESHOLD", str(size * _MB)),))
        for size in (0, 1, 16)
    ),
    "cycle_time": tuple(
        Variant(f"cycle_time={ms:g} ms", _BY_HOROVOD, environment=(("HOROVOD_CYCLE_TIME", f"{ms:g}"),))
        for ms in (0.1, 5, 25)
    ),
    "hierarchical_allreduce": (
        Variant("hierarchical_allreduce", _BY_HOROVOD, environment=(("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),)),
    ),
}
AUTOTUNE = "autotune"
AXES = (AUTOTUNE, *HOROVOD_AXES, *FLAG_AXES)
NOTES = {
    "dense_exchange": "fp16_allreduce, autotune and Horovod's own settings send the dense gradients through Horovod: "
    "compare them with dense_exchange=horovod.",
    "hierarchical_allreduce": "Horovod leaves hierarchical_allreduce off where all workers are on one machine, and "
    "without NCCL or MPI.",
}


def chosen(names):
    """-> the axes to vary, in the order of AXES; all of them for ().

    Raises:
      UserError: there is no such axis.
    """
    unknown = [name for name in names if name not in AXES]
    if unknown:
        raise UserError(f"--axes={','.join(names)}: no axis {', '.join(unknown)}; there are {', '.join(AXES)}")
    return [name for name in AXES if not names or name in names]


def variants(axis, experiment):
    """-> the Variants of an axis, but for the value that the experiment has by itself.

    Args:
      axis: of FLAG_AXES or HOROVOD_AXES.
      experiment: `Experiment`.
    """
    if axis in HOROVOD_AXES:
        return list(HOROVOD_AXES[axis])
    own = by_flag(experiment)[axis]
    values = [value for value in FLAG_AXES[axis] if value != own]
    return [Variant(f"{axis}={_text(value)}", (f"--{axis}={_text(value)}",)) for value in values]


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def left_out(names: list[str], machine: dict) -> dict[str, str]:
    """Returns, by the name of the variant, why this machine cannot run it; empty if it can run all variants.

    Args:
      names: the axes that are varied.
      machine: of `machine.describe`.
    """
    bfloat16 = f"{MIXED_PRECISION}=bfloat16"
    if MIXED_PRECISION not in names:
        return {}
    if machine["gpus"]:
        return {bfloat16: "bfloat16 is for CPUs, and this machine has a GPU"}
    if not machine["bfloat16"]:
        return {bfloat16: "this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)"}
    return {}
