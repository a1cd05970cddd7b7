"""The memory of the rows that a worker sends, kept from one request to the next."""

import numpy as np


class KeptMessage:
    """Arrays for a sync: the slots of its rows, the columns of a request; each of one worker takes the same memory.

    New memory costs more than the rows that are copied into it: where the machine is a virtual one, a request of 65,536
    rows of 34 floats took 22 ms of CPU in new memory, and takes 1 ms in memory that was used before.

    Caveat: a request has to have ended before the next one is made.
    """

    def __init__(self):
        self._bytes = {}

    def column(self, name, dtype, count, width=None):
        """-> an array [count], or [count, width], of any values.

        Args:
          name: of the column, as `keys`.
          dtype: of the array.
          count: rows.
          width: None for one dimension.
        """
        shape = (count,) if width is None else (count, width)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._bytes or len(self._bytes[name]) < size:
            self._bytes[name] = np.empty(size, np.uint8)
        return self._bytes[name][:size].view(dtype).reshape(shape)
