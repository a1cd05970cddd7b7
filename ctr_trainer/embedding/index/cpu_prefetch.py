"""The processor's prefetch instruction, for compiled loops over memory that is not in its cache.

A core overlaps the cache misses of a loop only as far as it predicts the loop's branches. A branch that depends on the
memory that a miss brings is often predicted wrong. So a loop over cold memory asks for that memory some rounds ahead.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# A loop asks for the row that it reaches this many rounds later: enough for the memory to answer, and few enough that
# the rows stay in the core's cache.
AHEAD = 16
_LINE_FLOATS = 16
_BYTE, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_READ, _KEEP, _DATA = _I32(0), _I32(3), _I32(1)


def _prefetch_line(typing_context: Any, array: Any, byte: Any) -> Any:
    """Asks for the cache line at `byte` bytes into a C-contiguous array; beyond the array nothing happens."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.inttoptr(builder.add(builder.ptrtoint(start, _I64), arguments[1]), _BYTE.as_pointer())
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind), [address, _READ, _KEEP, _DATA])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_prefetch: Any = intrinsic(_prefetch_line)  # Numba's stub keeps the typing context among the arguments.


@njit(nogil=True, cache=True)
def prefetch(array: np.ndarray, i: int | np.integer) -> None:
    """Asks for element i of a C-contiguous one-dimensional array."""
    _prefetch(array, np.int64(i) * array.itemsize)


@njit(nogil=True, cache=True)
def prefetch_row(rows: np.ndarray, i: int | np.integer) -> None:
    """Asks for row i of a C-contiguous two-dimensional array of 4-byte items."""
    start = np.int64(i) * rows.shape[1]
    for item in range(start, start + rows.shape[1], _LINE_FLOATS):
        _prefetch(rows, item * 4)
    _prefetch(rows, (start + rows.shape[1] - 1) * 4)
