"""Rows as a publication holds them: the weights without the optimizer's state, packed into a value of fixed size.

A value is little-endian and has no gaps. For a row of W weights in S segments:

| dtype | value | bytes | error of a weight w |
|---|---|---|---|
| `float32` | epoch uint32, weights float32[W] | 4 + 4 W | 0 |
| `float16` | epoch uint32, weights float16[W] | 4 + 2 W | \\|w\\| / 2^11, at least 2^-25 |
| `int8` | epoch uint32, scales float32[S], weights int8[W] | 4 + 4 S + W | half a scale |

A scale is the largest \\|w\\| of its segment, divided by 127. A float16 weight is at most 65504.
`float16` and `int8` are rounded to the nearest value, ties to even.
"""

import numpy as np

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.publish_config import DTYPES

_LARGEST = {"float16": float(np.finfo(np.float16).max), "int8": 127}


def value_bytes(config, dtype):
    """-> the number of bytes of a packed row of a table.

    Args:
      config: the table's `TableConfig`.
      dtype: one of `publish_config.DTYPES`.

    Raises:
      UserError: there is no such dtype.
    """
    return _layout(config, dtype).itemsize


def pack(rows, config, dtype, epoch):
    """Packs rows.

    Args:
      rows: float32[n, at least weights], finite; their first `config.weights` columns are the weights.
      config: the table's `TableConfig`.
      dtype: one of `publish_config.DTYPES`.
      epoch: of the publication, a uint32.

    Returns:
      uint8[n, value_bytes].
    """
    layout = _layout(config, dtype)
    values, weights = np.empty(len(rows), layout), rows[:, : config.weights]
    values["epoch"] = epoch
    if dtype == "float32":
        values["weights"] = weights
    elif dtype == "float16":
        values["weights"] = np.clip(weights, -_LARGEST[dtype], _LARGEST[dtype])
    else:
        for segment, (first, stop) in enumerate(_segments(config)):
            own = weights[:, first:stop]
            scales = np.abs(own).max(axis=1) / np.float32(_LARGEST[dtype])
            values["scales"][:, segment] = scales
            # Below the smallest scale there are zeros alone; a quotient may come out a little above the largest number.
            steps = np.divide(own, scales[:, None], out=np.zeros_like(own), where=scales[:, None] > 0)
            values["weights"][:, first:stop] = np.clip(np.rint(steps), -_LARGEST[dtype], _LARGEST[dtype])
    return values.view(np.uint8).reshape(len(rows), layout.itemsize)


def unpack(values, config, dtype):
    """Unpacks what `pack` made.

    Args:
      values: uint8[n, value_bytes].
      config, dtype: as for `pack`.

    Returns:
      (weights float32[n, weights], epochs uint32[n])
    """
    layout = _layout(config, dtype)
    packed = np.ascontiguousarray(values).reshape(-1).view(layout)
    weights = packed["weights"].astype(np.float32)
    if dtype == "int8":
        for segment, (first, stop) in enumerate(_segments(config)):
            weights[:, first:stop] *= packed["scales"][:, segment, None]
    return weights, packed["epoch"].astype(np.uint32)


def _layout(config, dtype):
    """-> the structured dtype of a value."""
    if dtype not in DTYPES:
        raise UserError(f"rows are published as one of {', '.join(DTYPES)}, not as {dtype!r}")
    scales = [("scales", "<f4", (len(config.dims),))] if dtype == "int8" else []
    return np.dtype([("epoch", "<u4"), *scales, ("weights", np.dtype(dtype).newbyteorder("<"), (config.weights,))])


def _segments(config):
    """-> list of (first column, column behind the last) of each segment."""
    stops = np.cumsum(config.dims)
    return list(zip((stops - config.dims).tolist(), stops.tolist(), strict=True))
