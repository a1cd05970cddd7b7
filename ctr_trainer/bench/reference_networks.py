"""The sizes of the networks that reference figures are of, told without TensorFlow."""

import math

from ctr_trainer.messages.errors import UserError

MODEL = "ctr_trainer.bench.convolution:model_fn"
SIDE = 3  # Points of a kernel each way.
BLOCKS = 2  # Of a stage.
PARAMS = {"resnet50": 25_600_000, "vgg16": 138_000_000}
CONVOLUTION = "conv"  # As many parameters as ResNet-50, in convolutions.
_MODEL = "model"  # What the experiment has.
_ENDS = 64


def parameters(channels):
    """-> how many parameters there are in the convolutions: 198 c^2 + 24 c, c the channels."""
    wide, area = 2 * channels, SIDE**2
    count = _of_convolution(area, 1, channels) + 2 * BLOCKS * _of_convolution(area, channels, channels)
    return count + _of_convolution(area, channels, wide) + 2 * BLOCKS * _of_convolution(area, wide, wide)


def channels_for(params):
    """-> the channels with which there are about so many parameters.

    Raises:
      UserError: there is no such network of so few.
    """
    if params < parameters(1):
        raise UserError(f"--dense_params: {params:g} parameters are too few for convolutions; lower --scale")
    least = int(math.sqrt(params / parameters(1)))  # As if all parameters grew with the square.
    return min(range(least, 2 * least + 1), key=lambda channels: abs(parameters(channels) - params))


def _of_convolution(area, inputs, outputs):
    return area * inputs * outputs + outputs


def networks(names, scale):
    """-> dict of name -> flags of `train`.

    Args:
      names: of `--dense_params`; () for the experiment's own network.
      scale: what the parameters are divided by.

    Raises:
      UserError: there is no such name, or too few parameters are left.
    """
    found = {}
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


def describe(names, model):
    """-> the networks of `networks` in words, as `deepfm (resnet50, vgg16), conv`.

    Args:
      names: of `--dense_params`.
      model: whose layers all but the convolutions are.
    """
    layers = [name for name in names if name != CONVOLUTION]
    parts = [f"{model} ({', '.join(layers)})"] if layers else []
    return ", ".join([*parts, *([CONVOLUTION] if CONVOLUTION in names else [])]) or model


def hidden_units(params):
    """-> widths 64, h, h, 64 of layers with about so many parameters in all but the first, h^2 + 128 h of them.

    The first layer has the model's input to it, so its size is the model's own.
    """
    h = round(math.sqrt(_ENDS**2 + params) - _ENDS)
    if h < 1:
        raise UserError(f"--dense_params: {params:g} parameters are too few for a tower; lower --scale")
    return (_ENDS, h, h, _ENDS)
