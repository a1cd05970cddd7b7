"""Flags of `bench network`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class NetworkFlags:
    """Bench network"""

    machines: int = flag(4, "network namespaces with a worker each; of `simulate`: of the job", "machines", minimum=1)
    gbit: tuple[str, ...] = flag((), "of each machine's network, each way; 0: no limit", "Gbit/s")
    dense_params: tuple[str, ...] = flag(
        (),
        "dense networks, in turn: resnet50, vgg16 or a number for layers with as many parameters, conv for "
        "convolutions with ResNet-50's; none: --hidden_units",
        "name",
    )
    scale: float = flag(1.0, "by what the parameters of --dense_params are divided", "times", minimum=1.0)
    ways: tuple[str, ...] = flag(
        (), "plain, fp16, accumulation, sync, autotune; plain,fp16,autotune by default", "name"
    )
