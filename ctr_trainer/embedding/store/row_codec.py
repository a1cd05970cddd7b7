"""The encoding of rows and their changes between a worker's cache and its store."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_kernels import kernel
from ctr_trainer.embedding.memory.growable_array import as_float32 as float32
from ctr_trainer.embedding.table.row_kernels import ROWS, ROWS_OUT
from ctr_trainer.system.messages.errors import UserError

# A row's largest value is scaled into [2**13, 2**14), far from 65504, the largest float16. The row's smaller values
# keep all 11 bits, down to 2**-27 of its largest value.
_TOP = 14
# A row whose largest value is below 2**-112 is scaled as if that value were 2**-112, so that the scale stays a normal
# float32.
_LEAST = -112
_LEAST_POWER, _MOST_POWER = _LEAST - _TOP, 128 - _TOP

_HALVES = types.Array(types.uint16, 2, "C", readonly=True, aligned=False)
_HALVES_OUT = types.Array(types.uint16, 2, "C")
# A float32 has 23 fraction bits, 8 exponent bits and an exponent bias of 127; a float16 has 10, 5 and 15.
_I32 = np.int32
_SIZE, _FRACTION, _BIAS, _INFINITY = _I32(0x7FFFFFFF), _I32(23), _I32(127), np.float32(np.inf)
_HALF_SIZE, _HALF_SIGN, _NARROWED = _I32(0x7FFF), _I32(0x8000), _I32(13)
_HALF_NORMAL = _I32((127 - 14) << 23)  # 2**-14, float16's smallest normal value
_REBIASED = _I32((127 - 15) << 23)
_BIG_TO_SMALL, _HALF_END = np.float32(2.0**112), np.float32(2.0**16)


def pack(rows: np.ndarray) -> np.ndarray:
    """Packs finite float32[n, width] into float16[n, width + 1].

    Each row is scaled by its own power of two, so that a large accumulator does not overflow and a small change does
    not vanish. Column 0 is the exponent of that power, an integer from -126 to 114.
    """
    out = np.empty((len(rows), rows.shape[1] + 1), np.float16)
    _pack(float32(rows), out.view(np.uint16))
    return out


def unpack(packed: np.ndarray) -> np.ndarray:
    """Inverts `pack`, with an error of at most 2**-11 of the value or 2**-38 of the row's largest value.

    If column 0 of a row is not an integer from -126 to 114, the unpacked row is not finite.
    """
    out = np.empty((len(packed), packed.shape[1] - 1), np.float32)
    _unpack(np.require(packed, np.float16, ("C",)).view(np.uint16), out)
    return out


@kernel()
def _bits(value: np.float32) -> np.int32:
    return np.float32(value).view(np.int32)


@kernel()
def _float(bits: np.int32) -> np.float32:
    return _I32(bits).view(np.float32)


# Each operation's result is narrowed to 32 bits: Numba widens it to 64 bits, of which half as many fit into a vector.
@kernel()
def _to_half(value: np.float32) -> np.uint16:
    """Returns the float16 bits of a value below 65520, rounded to nearest, ties to even."""
    bits = _bits(value)
    size = _I32(bits & _SIZE)
    odd = _I32(_I32(size >> _NARROWED) & _I32(1))
    normal = _I32(_I32(_I32(size - _REBIASED) + _I32(_I32(0xFFF) + odd)) >> _NARROWED)
    # The last bit of the sum is worth 2**-24, as in a subnormal float16.
    subnormal = _I32(_bits(_float(size) + np.float32(0.5)) - _bits(np.float32(0.5)))
    sign = _I32(_I32(bits >> _I32(16)) & _HALF_SIGN)
    return np.uint16((subnormal if size < _HALF_NORMAL else normal) | sign)


@kernel()
def _from_half(half: np.uint16) -> np.float32:
    """Returns the value of a float16, given its bits; infinity if the float16 is not finite."""
    bits = _I32(half)
    size = _float(_I32(_I32(bits & _HALF_SIZE) << _NARROWED)) * _BIG_TO_SMALL
    size = _INFINITY if size >= _HALF_END else size
    return _float(_I32(_bits(size) | _I32(_I32(bits & _HALF_SIGN) << _I32(16))))


@kernel()
def _power_of_two(power: np.int32) -> np.float32:
    return _float(_I32(_I32(_BIAS + power) << _FRACTION))


@kernel(types.void(ROWS, _HALVES_OUT))
def _pack(rows: np.ndarray, out: np.ndarray) -> None:
    for i in range(rows.shape[0]):
        largest = _I32(0)
        for d in range(np.uint64(rows.shape[1])):
            largest = max(largest, _I32(_bits(rows[i, d]) & _SIZE))
        exponent = _I32(_I32(largest >> _FRACTION) - _I32(_BIAS - 1))  # of a largest value in [2**-1, 1) times 2**it
        power = _I32(max(exponent, _I32(_LEAST)) - _I32(_TOP))
        scale = _power_of_two(_I32(-power))
        out[i, 0] = _to_half(np.float32(power))
        for d in range(np.uint64(rows.shape[1])):
            out[i, d + np.uint64(1)] = _to_half(rows[i, d] * scale)


@kernel(types.void(_HALVES, ROWS_OUT))
def _unpack(packed: np.ndarray, out: np.ndarray) -> None:
    for i in range(out.shape[0]):
        power = _from_half(packed[i, 0])
        if _LEAST_POWER <= power <= _MOST_POWER and power == np.floor(power):
            scale = _power_of_two(_I32(power))
        else:
            scale = np.float32(np.nan)
        for d in range(np.uint64(out.shape[1])):
            out[i, d] = _from_half(packed[i, d + np.uint64(1)]) * scale


@dataclasses.dataclass(frozen=True)
class RowCodec:
    """Encodes float32 rows as the array that is sent, and decodes it.

    Attributes:
      name: the codec's name in `--sync_compression` and in requests to the service.
      is_exact: whether decoded rows equal the original rows bit by bit. If a codec is not exact, the worker keeps the
        rounding error of each change, see `CachedRows.take`.
      encode: a function from finite float32[n, width] to an array with the dtype and columns of `schema`.
      decode: a function from that array, contiguous or not, aligned or not, to C-contiguous float32[n, width].
      dtype: the dtype of the encoded array.
      more: the number of columns of the encoded array in addition to `width`.
    """

    name: str
    is_exact: bool
    encode: Callable[[np.ndarray], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray]
    dtype: str
    more: int

    def schema(self, width: int) -> tuple[str, int]:
        """Returns (dtype, columns) of the array [n, columns] that encodes rows of `width` floats."""
        return self.dtype, width + self.more


def _as_they_are(rows: np.ndarray) -> np.ndarray:
    return rows


def _contiguous(rows: np.ndarray) -> np.ndarray:
    # Does not copy unaligned rows, because the kernels of a merge accept them.
    return np.require(rows, requirements=("C",))


PLAIN = RowCodec("none", True, _as_they_are, _contiguous, "<f4", 0)
CODECS = {codec.name: codec for codec in (PLAIN, RowCodec("fp16", False, pack, unpack, "<f2", 1))}


def find_codec(name: str) -> RowCodec:
    """Returns the RowCodec `name`; raises UserError, which lists the codecs, if it does not exist."""
    if name not in CODECS:
        raise UserError(
            f"sync_compression {name!r} is not one of {', '.join(CODECS)}: give one of these, and run workers and "
            "service of one version"
        )
    return CODECS[name]
