"""Flags of `bench network`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class NetworkFlags(Settings, title="Bench network"):
    """Bench network."""

    machines: int = setting(
        4, "network namespaces with a worker each; of `simulate`: of the job", "machines", minimum=1
    )
    gbit: tuple[str, ...] = setting((), "speeds of each machine's network, each way; 0: no limit", "Gbit/s")
    dense_params: tuple[str, ...] = setting(
        (),
        "dense networks, in turn: resnet50, vgg16 or a number for layers with as many parameters, conv for "
        "convolutions with ResNet-50's; none: --hidden_units",
        "name",
    )
    scale: float = setting(1.0, "divisor of the parameters of --dense_params", "times", minimum=1.0)
    ways: tuple[str, ...] = setting(
        (), "ways of the gradients: plain, fp16, accumulation, sync, autotune; plain,fp16,autotune by default", "name"
    )
