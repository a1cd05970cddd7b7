"""The coefficients of a bag's values in the bag's vector."""

import numba
import numpy as np

_POWERS = {"sum": 0, "mean": 1, "sqrtn": 2}


def coefficients(positions, splits, combiner, weights=None):
    """Computes the coefficients: a bag's vector is the sum of its values' rows, each times its coefficient c_i.

        sum: c_i = w_i    mean: c_i = w_i / sum_i w_i    sqrtn: c_i = w_i / sqrt(sum_i w_i^2)

    A sum is over the values of the bag, without its keys 0. If the sum is 0, so is c_i.

    Args:
      positions: int32[n]; below 0 for a key 0, which is no value.
      splits: int32[B + 1]; bag b has the values splits[b] to splits[b + 1].
      combiner: `sum`, `mean` or `sqrtn`.
      weights: float32[n]; None for ones.

    Returns:
      float32[n].

    Raises:
      ValueError: there is no such combiner.

    Source: TensorFlow, embedding_lookup_sparse.
    """
    out = np.ones(len(positions), np.float32) if weights is None else np.array(weights, np.float32)
    if combiner not in _POWERS:
        raise ValueError(f"combiner {combiner!r} is not one of {', '.join(_POWERS)}")
    if _POWERS[combiner]:
        _normalise(positions, splits, _POWERS[combiner], out)
    return out


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _normalise(positions, splits, power, out):
    for b in range(splits.size - 1):
        total = 0.0
        for i in range(splits[b], splits[b + 1]):
            if positions[i] >= 0:
                total += out[i] if power == 1 else out[i] * out[i]
        if power == 2:
            total = np.sqrt(total)
        scale = np.float32(1 / total) if total != 0.0 else np.float32(0)
        for i in range(splits[b], splits[b + 1]):
            out[i] *= scale
