"""How many parameters `convolution.py`'s network has: told without TensorFlow, for a command line's checks."""

import math

from ctr_trainer.messages.errors import UserError

MODEL = "ctr_trainer.bench.convolution:model_fn"
SIDE = 3  # Points of a kernel each way.
BLOCKS = 2  # Of a stage.


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
