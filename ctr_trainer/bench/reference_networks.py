"""The sizes of the networks of published reference figures. This module does not import TensorFlow."""

import math
from collections.abc import Sequence

from ctr_trainer.system.messages.errors import UserError

MODEL = "ctr_trainer.bench.models:model_fn"
SIDE = 3  # Width and height of a kernel.
BLOCKS = 2  # Number of residual blocks in a stage.
PARAMS = {"resnet50": 25_600_000, "vgg16": 138_000_000}
CONVOLUTION = "conv"  # Convolutions with as many parameters as ResNet-50.
_MODEL = "model"  # The experiment's own network.
_ENDS = 64  # Width of the first and of the last layer.
ONE_MACHINE = "one machine"

# Reference times for equal data, in percent of the time of one GPU: by (tower, machines, Gbit/s, way), and for several
# GPUs in one machine by (tower, GPUs).
_REFERENCE = {
    ("resnet50", 4, 2.5, "plain"): 99,
    ("resnet50", 4, 5.0, "plain"): 49,
    ("vgg16", 4, 2.5, "plain"): 345,
    ("vgg16", 4, 5.0, "plain"): 173,
    ("vgg16", 4, 5.0, "fp16"): 87,
}
_REFERENCE_ONE_MACHINE = {("resnet50", 4): 29, ("vgg16", 4): 28}
REFERENCE_TEXT = (
    "Reference: convolutional networks on 4 machines with one GPU each (or 4 GPUs in one machine). Here, resnet50 and "
    "vgg16 are MLPs behind embeddings on CPU cores, with as many parameters divided by the divisor. A convolution "
    "computes 50 to 160 times more with each parameter, so these MLPs reach the network limit sooner.",
    "In the reference, Horovod's autotune changed resnet50 at 5 Gbit/s from 49% to 61%.",
)
CONVOLUTION_TEXT = (
    "conv consists of convolutions with as many parameters as ResNet-50, divided by the divisor, and as much compute "
    "per parameter."
)


def parameters(channels: int) -> int:
    """Returns the number of parameters of the convolutions, 198 c^2 + 24 c for c channels."""
    wide, area = 2 * channels, SIDE**2
    count = _of_convolution(area, 1, channels) + 2 * BLOCKS * _of_convolution(area, channels, channels)
    return count + _of_convolution(area, channels, wide) + 2 * BLOCKS * _of_convolution(area, wide, wide)


def channels_for(params: float) -> int:
    """Returns the number of channels with which the convolutions have about `params` parameters.

    Raises:
      UserError: one channel has more parameters.
    """
    if params < parameters(1):
        raise UserError(f"--dense_params: {params:g} parameters are too few for convolutions; reduce the divisor")
    least = int(math.sqrt(params / parameters(1)))  # A lower bound: not all parameters grow with the square.
    return min(range(least, 2 * least + 1), key=lambda channels: abs(parameters(channels) - params))


def _of_convolution(area: int, inputs: int, outputs: int) -> int:
    return area * inputs * outputs + outputs


def networks(names: Sequence[str], scale: float) -> dict[str, tuple[str, ...]]:
    """Returns the flags of `train` for each network in `--dense_params`; () selects the experiment's own network.

    The number of parameters is divided by `scale`.

    Raises:
      UserError: a name is unknown, or too few parameters are left.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name == CONVOLUTION:
            channels = channels_for(PARAMS["resnet50"] / scale)
            found[name] = (f"--model={MODEL}", f"--model_params=channels={channels}")
            continue
        params = PARAMS.get(name)
        if params is None:
            if not name.isdecimal():
                known = ", ".join([*PARAMS, CONVOLUTION])
                raise UserError(f"--dense_params={name}: expected {known} or a number of parameters")
            params = int(name)
        found[name] = (f"--hidden_units={','.join(map(str, hidden_units(params / scale)))}",)
    return found or {_MODEL: ()}


def without_divisor(texts: Sequence[str]) -> tuple[list[str], float]:
    """Returns the names in `--dense_params`, such as `resnet50` for `resnet50/100`, and the divisor of the parameters.

    Raises:
      UserError: a divisor is not a number of at least 1, or the divisors differ.
    """
    names = [text.partition("/")[0] for text in texts]
    try:
        divisors = {float(text.partition("/")[2] or 1) for text in texts} or {1.0}
    except ValueError:
        divisors = {0.0}
    if len(divisors) > 1 or not 1 <= min(divisors) < math.inf:
        raise UserError(
            f"--dense_params={','.join(texts)}: expected the same number of at least 1 after each slash, such as "
            "resnet50/100,vgg16/100"
        )
    return names, divisors.pop()


def describe(names: Sequence[str], model: str) -> str:
    """Describes networks in words, such as `deepfm (resnet50, vgg16), conv`.

    The networks replace the hidden layers of the model; the convolutions replace the whole model.
    """
    layers = [name for name in names if name != CONVOLUTION]
    parts = [f"{model} ({', '.join(layers)})"] if layers else []
    return ", ".join([*parts, *([CONVOLUTION] if CONVOLUTION in names else [])]) or model


def hidden_units(params: float) -> tuple[int, ...]:
    """Returns the widths 64, h, h, 64 of layers with about `params` parameters.

    The parameters, h^2 + 128 h, do not include the first layer, whose size depends on the model's input.
    """
    h = round(math.sqrt(_ENDS**2 + params) - _ENDS)
    if h < 1:
        raise UserError(f"--dense_params: {params:g} parameters are too few for hidden layers; reduce the divisor")
    return (_ENDS, h, h, _ENDS)


def reference_percent(tower: str, place: str, machines: int) -> str:
    """Returns the reference times of a tower at a place (ONE_MACHINE, or a speed such as `5 Gbit`); `-` for none."""
    if place == ONE_MACHINE:
        percent = _REFERENCE_ONE_MACHINE.get((tower, machines))
        return "-" if percent is None else f"plain {percent}"
    key = (tower, machines, float(place.split()[0]))
    return ", ".join(f"{way} {percent}" for (*other, way), percent in _REFERENCE.items() if tuple(other) == key) or "-"
