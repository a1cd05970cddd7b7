"""The stored form of a table's rows, and the only code that turns it into float32 and back, apart from exported graphs.

A stored row is float32[lanes]: each segment's weights in their form, padded to whole lanes of 4 bytes, then the
optimizer state, which stays float32.

| `row_dtype` | a segment of n weights | bytes | a weight w changes by less than |
|---|---|---|---|
| `float32` | float32[n] | 4 n | 0 |
| `float16` | float16[n] | 2 n | \\|w\\| / 2^10, at least 2^-24; a weight is at most 65504 |
| `int8` | step float32, int8[n] | 4 + n | a step |

A step is the smallest power of two that is at least the largest \\|w\\| / 127. A segment that would become no smaller,
such as a linear weight, stays float32.

If the optimizer keeps a float per weight, an int8 row also has 8 more bits of each weight, in the lowest bits of that
float, of which 15 bits of fraction remain. Only optimizer steps see them: a model reads the int8 weights, while
training, in an evaluation and in an export. Without these bits, the noise of the rounding of many small updates would
add up in rows of frequent keys.

Rounding is stochastic: the value in the middle between two numbers becomes either with probability 1/2, so that many
small updates of a weight add up although each is smaller than a step. The random bits are a hash of the whole row
before it is rounded, of weights and state, and of the position. So a stored row is a pure function of the row: the
service, each host, a restart and a deterministic run round alike, and no generator has to be saved or shared. A number
that a stored row represents stays as it is, because steps are powers of two: a weight without an update does not drift.

Sources: Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015; the bits in the optimizer's state:
Kalamkar et al., Optimizing Deep Learning Recommender Systems Training on CPU Cluster Architectures, SC 2020. FBGEMM's
embeddings round rows of float16 and int8 stochastically too, by a generator per thread, and compute the steps from the
largest and the smallest weight, so that each update rounds all weights of the row.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import AHEAD, kernel, prefetch_row
from ctr_trainer.embedding.memory.growable_array import as_float32
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.row_kernels import MESSAGE_ROWS, ROWS, ROWS_OUT

FLOAT32, FLOAT16, INT8 = range(3)
DTYPES = {"float32": FLOAT32, "float16": FLOAT16, "int8": INT8}
_LAYOUT = types.Array(types.int64, 2, "C", readonly=True)
_COLUMN, _I32, _U32 = np.uint64, np.int32, np.uint32
_SIZE, _SIGN, _INFINITY = _I32(0x7FFFFFFF), _I32(0x8000), _I32(0x7F800000)
# Adding this to the bits of a largest weight raises their exponent if the weight is above 127 / 64 times a power of 2.
_ABOVE_127, _SHIFT, _LEAST_STEP = _I32(0x1FFFF), _I32(6), _I32(16)
_FINE = np.float32(256)  # Fine steps of a step, with the bits in the state: from 128 below a code to 127 above it.
_LOW, _HALF_STEP = _I32(0xFF), _I32(128)
# A largest weight of so many fine steps would have the next smaller step, and the codes of the row would change when
# the row is stored again. So it is rounded to one more.
_NEXT_STEP = _I32(127 * 128)
# A float32 has 23 fraction bits and an exponent bias of 127; a float16 has 10 and 15. 2**-14 is its smallest normal
# value, and its subnormal values are multiples of 2**-24.
_REBIASED, _HALF_NORMAL = _I32((127 - 15) << 23), _I32((127 - 14) << 23)
_HALF_LARGEST, _HALF_INFINITY, _HALF_SIZE = _I32(0x7BFF), _I32(0x7C00), _I32(0x7FFF)
_BIG_TO_SMALL, _HALF_END, _TINY = np.float32(2.0**112), np.float32(2.0**16), np.float32(2.0**24)


@kernel()
def _bits(value: np.float32) -> np.int32:
    return np.float32(value).view(np.int32)


@kernel()
def _float(bits: np.int32) -> np.float32:
    return _I32(bits).view(np.float32)


# Each operation's result is narrowed to 32 bits: Numba widens it to 64 bits, of which half as many fit into a vector.
@kernel()
def _random(row: np.uint32, position: np.uint64) -> np.uint32:
    """Returns 32 random bits from the hash of a row and a position: the finalizer of MurmurHash3."""
    value = _U32(row + _U32(_U32(position) * _U32(0x9E3779B9)))
    value = _U32(_U32(value ^ _U32(value >> _U32(16))) * _U32(0x85EBCA6B))
    value = _U32(_U32(value ^ _U32(value >> _U32(13))) * _U32(0xC2B2AE35))
    return _U32(value ^ _U32(value >> _U32(16)))


@kernel()
def _to_half(value: np.float32, random: np.uint32) -> np.uint16:
    """Returns the float16 bits of a value, rounded by 13 random bits."""
    bits, dither = _bits(value), _I32(random >> _U32(19))
    size = _I32(bits & _SIZE)
    normal = min(_I32(_I32(_I32(size - _REBIASED) + dither) >> _I32(13)), _HALF_LARGEST)
    subnormal = _I32(min(_float(size), np.float32(1)) * _TINY + np.float32(dither) * np.float32(2.0**-13))
    half = subnormal if size < _HALF_NORMAL else normal
    half = _HALF_INFINITY if size >= _INFINITY else half
    return np.uint16(_I32(half | _I32(_I32(bits >> _I32(16)) & _SIGN)))


@kernel()
def _from_half(half: np.uint16) -> np.float32:
    """Returns the value of a float16, given its bits; infinity if the float16 is not finite."""
    bits = _I32(half)
    size = _float(_I32(_I32(bits & _HALF_SIZE) << _I32(13))) * _BIG_TO_SMALL
    size = np.float32(np.inf) if size >= _HALF_END else size
    return _float(_I32(_bits(size) | _I32(_I32(bits & _SIGN) << _I32(16))))


@kernel(types.void(MESSAGE_ROWS, SLOTS, _LAYOUT, ROWS_OUT))
def _take(stored: np.ndarray, slots: np.ndarray, layout: np.ndarray, out: np.ndarray) -> None:
    """Sets out[i] = the stored row slots[i], or only the weights that a model reads; zeros for the slot -1."""
    halves, codes = stored.reshape(-1).view(np.uint16), stored.reshape(-1).view(np.int8)
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(stored, slots[i + AHEAD])
        slot = slots[i]
        if slot < 0:
            for d in range(_COLUMN(out.shape[1])):
                out[i, d] = np.float32(0)
            continue
        weight = lane = _COLUMN(0)
        for segment in range(layout.shape[0]):
            kind, dim = layout[segment, 0], _COLUMN(layout[segment, 1])
            start = _COLUMN(slot) * _COLUMN(stored.shape[1]) + lane
            if kind == INT8:
                step, first = stored[slot, lane], _COLUMN(4) * start + _COLUMN(4)
                for d in range(dim):
                    out[i, weight + d] = step * np.float32(codes[first + d])
            elif kind == FLOAT16:
                for d in range(dim):
                    out[i, weight + d] = _from_half(halves[_COLUMN(2) * start + d])
            else:
                for d in range(dim):
                    out[i, weight + d] = stored[slot, lane + d]
            weight, lane = weight + dim, lane + _COLUMN(layout[segment, 2])
        if _COLUMN(out.shape[1]) == weight:
            continue
        for d in range(_COLUMN(out.shape[1]) - weight):
            out[i, weight + d] = stored[slot, lane + d]
        first = weight = _COLUMN(0)
        for segment in range(layout.shape[0]):
            dim, state = _COLUMN(layout[segment, 1]), _COLUMN(layout[segment, 3])
            if state > _COLUMN(0):
                step = stored[slot, first] / _FINE
                for d in range(dim):
                    bits = _bits(out[i, state + d])
                    out[i, weight + d] += step * np.float32(_I32(_I32(bits & _LOW) - _HALF_STEP))
                    out[i, state + d] = _float(_I32(bits & ~_LOW))
            first, weight = first + _COLUMN(layout[segment, 2]), weight + dim


@kernel(types.void(ROWS_OUT, SLOTS, _LAYOUT, ROWS))
def _put(stored: np.ndarray, slots: np.ndarray, layout: np.ndarray, rows: np.ndarray) -> None:
    """Sets the stored row slots[i] to rows[i], rounded; the slot -1 is skipped."""
    halves, codes = stored.reshape(-1).view(np.uint16), stored.reshape(-1).view(np.int8)
    weights = _COLUMN(layout[:, 1].sum())
    for i in range(slots.size):
        slot, row = slots[i], _U32(0)
        if slot < 0:
            continue
        for d in range(_COLUMN(rows.shape[1])):  # A sum of products with odd numbers.
            row = _U32(row + _U32(_U32(_bits(rows[i, d])) * _U32(_U32(_U32(d) * _U32(2)) * _U32(0x9E3779B1) + _U32(1))))
        moved = _COLUMN(stored.shape[1]) - _COLUMN(rows.shape[1])  # From a state's float to its lane, modulo 2**64.
        for d in range(weights, _COLUMN(rows.shape[1])):
            stored[slot, moved + d] = rows[i, d]
        weight = lane = _COLUMN(0)
        for segment in range(layout.shape[0]):
            kind, dim, lanes = layout[segment, 0], _COLUMN(layout[segment, 1]), _COLUMN(layout[segment, 2])
            state = _COLUMN(layout[segment, 3])
            start = _COLUMN(slot) * _COLUMN(stored.shape[1]) + lane
            if kind == INT8:
                largest = _I32(0)
                for d in range(dim):
                    largest = max(largest, _I32(_bits(rows[i, weight + d]) & _SIZE))
                power = max(_I32(_I32(_I32(largest + _ABOVE_127) >> _I32(23)) - _SHIFT), _LEAST_STEP)
                step, steps = _float(_I32(power << _I32(23))), _float(_I32(_I32(_I32(254) - power) << _I32(23)))
                if largest >= _INFINITY:
                    step = steps = np.float32(np.nan)
                stored[slot, lane] = step
                stored[slot, lane + lanes - _COLUMN(1)] = np.float32(0)  # The padding, too.
                first = _COLUMN(4) * start + _COLUMN(4)
                # 128 and 32768 make the sums positive, so that they are rounded down. They have 24 bits, so that a
                # number of steps stays as it is.
                if state == _COLUMN(0):
                    for d in range(dim):
                        dither = np.float32(_I32(_random(row, weight + d) >> _U32(16))) * np.float32(2.0**-16)
                        number = rows[i, weight + d] * steps + dither + np.float32(128)
                        codes[first + d] = np.int8(_I32(_I32(number) - _HALF_STEP))
                else:
                    for d in range(dim):
                        random = _random(row, weight + d)
                        dither = np.float32(_I32(random >> _U32(24))) * np.float32(2.0**-8)
                        number = rows[i, weight + d] * steps * _FINE + dither + np.float32(32768)
                        fine = _I32(_I32(number) - _I32(32768))
                        if abs(fine) == _NEXT_STEP and _I32(_bits(rows[i, weight + d]) & _SIZE) == largest:
                            fine = _I32(fine + _I32(1)) if fine > 0 else _I32(fine - _I32(1))
                        fine = _I32(fine + _HALF_STEP)
                        codes[first + d] = np.int8(_I32(fine >> _I32(8)))
                        bits = _I32(_I32(_bits(rows[i, state + d]) + _I32(_I32(random) & _LOW)) & ~_LOW)
                        stored[slot, moved + state + d] = _float(_I32(bits | _I32(fine & _LOW)))
            elif kind == FLOAT16:
                stored[slot, lane + lanes - _COLUMN(1)] = np.float32(0)
                for d in range(dim):
                    halves[_COLUMN(2) * start + d] = _to_half(rows[i, weight + d], _random(row, weight + d))
            else:
                for d in range(dim):
                    stored[slot, lane + d] = rows[i, weight + d]
            weight, lane = weight + dim, lane + lanes


class RowForm:
    """Stores rows of segments of `dims` weights and `state` floats by `dtype`, one of DTYPES.

    `fine` has for each segment the first of its state's floats, one per weight; 0 if there are none.

    Attributes:
      segments: (kind, weights, lanes) of each segment; the kind is FLOAT32, FLOAT16 or INT8.
      weights, width: the number of weights, and of floats, of a row.
      lanes: the number of float32 lanes of a stored row.
      weight_lanes: the number of leading lanes that have the weights.
      is_exact: whether a stored row is the row itself.
    """

    def __init__(self, dims: Sequence[int], state: int, dtype: str, fine: Sequence[int] = ()) -> None:
        self.segments = tuple(_segment(dim, DTYPES[dtype]) for dim in dims)
        self.weights, self.weight_lanes = sum(dims), sum(lanes for *_, lanes in self.segments)
        self.width, self.lanes = self.weights + state, self.weight_lanes + state
        self.is_exact = all(kind == FLOAT32 for kind, *_ in self.segments)
        own = zip(self.segments, fine or [0] * len(dims), strict=True)
        self._layout = np.array([(*each, at * (each[0] == INT8)) for each, at in own], np.int64)

    def take(self, stored: np.ndarray, slots: np.ndarray, weights_only: bool = False) -> np.ndarray:
        """Returns float32[U, width], the rows at the slots, or [U, weights] as a model reads them; zeros for -1."""
        rows = np.empty((len(slots), self.weights if weights_only else self.width), np.float32)
        if self.is_exact:
            row_kernels.take(stored, slots, 0, rows)
        else:
            _take(stored, slots, self._layout, rows)
        return rows

    def put(self, stored: np.ndarray, slots: np.ndarray, rows: np.ndarray) -> None:
        """Stores rows, float32[U, width], at the slots; -1 is skipped."""
        if self.is_exact:
            row_kernels.put(stored, slots, np.require(rows, np.float32, ("C",)))
        else:
            _put(stored, slots, self._layout, as_float32(rows))

    @contextlib.contextmanager
    def opened(self, stored: np.ndarray, slots: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (rows float32[n, width], place of each slot in them, -1 for -1), stored when the block ends.

        Exact rows are `stored` itself, and the places are the slots.
        """
        if self.is_exact:
            yield stored, slots
            return
        rows = self.take(stored, slots)
        yield rows, np.where(slots < 0, -1, np.arange(len(slots)))
        self.put(stored, slots, rows)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Returns float32[n, lanes], the stored form of float32[n, width]; the rows themselves if it is exact."""
        if self.is_exact:
            return rows
        stored = np.empty((len(rows), self.lanes), np.float32)
        self.put(stored, np.arange(len(rows)), rows)
        return stored

    def decode(self, stored: np.ndarray) -> np.ndarray:
        """Returns C-contiguous float32[n, width] of stored rows, which may be unaligned if they are exact."""
        stored = np.require(stored, requirements=("C",))  # The kernels accept unaligned rows.
        return stored if self.is_exact else self.take(stored, np.arange(len(stored)))

    @property
    def nbytes(self) -> int:
        """Bytes of a stored row."""
        return 4 * self.lanes

    def unpacked(self, stored: np.ndarray, weights_only: bool = False) -> np.ndarray:
        """Returns what `take` does of the bytes of stored rows, uint8[n, nbytes]."""
        return self.take(np.ascontiguousarray(stored).view(np.float32), np.arange(len(stored)), weights_only)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Returns float32[n, weights], what a model reads of rows, float32[n, width]."""
        return rows[:, : self.weights] if self.is_exact else self.take(self.encode(rows), np.arange(len(rows)), True)


@functools.cache
def row_form(dims: tuple[int, ...], state: int, dtype: str, fine: tuple[int, ...]) -> RowForm:
    """Returns the `RowForm` of a table, with the arguments of its constructor."""
    return RowForm(dims, state, dtype, fine)


def _segment(dim: int, kind: int) -> tuple[int, int, int]:
    """Returns (kind, weights, lanes) of a segment of `dim` weights."""
    lanes = {FLOAT32: dim, FLOAT16: (dim + 1) // 2, INT8: 1 + (dim + 3) // 4}[kind]
    return (kind, dim, lanes) if lanes < dim else (FLOAT32, dim, dim)
