"""Arrays as the kernels take them: contiguous and aligned, copied only where they are not."""

import numpy as np


def int64(values):
    return np.require(values, np.int64, ("C", "A"))


def float32(values):
    return np.require(values, np.float32, ("C", "A"))
