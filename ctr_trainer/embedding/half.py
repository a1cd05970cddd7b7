"""Rows as float16 on the wire: half the bytes, 11 bits of precision."""

import numpy as np

# A row's largest value is scaled into [2**13, 2**14): far from float16's largest, 65504, and its smaller values keep
# all 11 bits down to 2**-27 of the largest.
_TOP = 14
# Below 2**-112 a row is scaled as if its largest value were that, so that its scale stays a normal float32.
_LEAST = -112
_NOT_FINITE = 999


def pack(rows):
    """float32[n, width] -> float16[n, width + 1].

    A row is scaled by a power of two of its own, so that neither a large accumulator overflows nor a small change
    vanishes; column 0 is that power, an integer of -126 to 114. Finite rows only.
    """
    out = np.empty((len(rows), rows.shape[1] + 1), np.float16)
    _, exponents = np.frexp(np.abs(rows).max(axis=1, initial=np.float32(0)))
    powers = np.maximum(exponents, _LEAST) - _TOP
    out[:, 0] = powers
    out[:, 1:] = rows * np.ldexp(np.float32(1), -powers)[:, None]
    return out


def unpack(packed):
    """What `pack` made -> float32[n, width]: each value to 2**-11 of itself or 2**-38 of its row's largest.

    A row whose column 0 is not a finite number comes out not finite.
    """
    finite = np.isfinite(packed[:, 0])
    powers = np.where(finite, packed[:, 0], np.float16(_NOT_FINITE)).astype(np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        return packed[:, 1:].astype(np.float32) * np.ldexp(np.float32(1), powers)[:, None]
