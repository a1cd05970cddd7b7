"""Dense networks of a given size, named after those that a benchmark's reference figures are of."""

import math

from ctr_trainer.bench import convolution_size
from ctr_trainer.messages.errors import UserError

PARAMS = {"resnet50": 25_600_000, "vgg16": 138_000_000}
CONVOLUTION = "conv"  # As many parameters as ResNet-50, in convolutions.
_MODEL = "model"  # What the experiment has.
_ENDS = 64


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
            channels = convolution_size.channels_for(PARAMS["resnet50"] / scale)
            found[name] = (f"--model={convolution_size.MODEL}", f"--model_params=channels={channels}")
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
