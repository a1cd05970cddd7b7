"""The ways in which the columns of a request get to a service."""

import contextlib
import threading

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service import wire
from ctr_trainer.messages.errors import UserError

_NAME = "columns"
# A request with fewer bytes is sent inline: shared memory would save nothing.
_LEAST_BYTES = 64 << 10


class InlineColumns:
    """Sends columns behind the request, to any service."""

    def sending(self, request, columns):
        """-> context manager that gives the bytes to send; they are valid until its end, the answer's arrival.

        Args:
          request: dict.
          columns: C-contiguous arrays of one length.
        """
        return contextlib.nullcontext(wire.pack(request, columns))

    def close(self):
        """Nothing to do."""


INLINE = InlineColumns()


def shared_or_inline(ask):
    """-> `SharedColumns` if the service can read them, else `INLINE`.

    Args:
      ask: f(dict with `memory`, an address) -> whether the service can read that memory.
    """
    if not SharedMemory.is_possible():
        return INLINE
    columns = SharedColumns()
    if ask({"memory": columns.address}):
        return columns
    columns.close()
    return INLINE


class SharedColumns:
    """Leaves columns in memory that a service of the same host and user reads, and sends the place only.

    A socket copies each byte several times: a sync of 187,000 rows of 34 floats took 46 ms of two processes' time,
    and takes 24 ms. Equal bytes arrive either way.

    Threads: any; while the memory is in use, another request is sent inline.
    """

    def __init__(self):
        self._memory = SharedMemory()
        self._bytes = self._memory.array(_NAME, np.uint8, most_rows=wire.MOST_BYTES).array
        self._lock = threading.Lock()

    @property
    def address(self):
        return self._memory.address

    @contextlib.contextmanager
    def sending(self, request, columns):
        """As `InlineColumns`."""
        size = wire.columns_bytes(columns)
        if not _LEAST_BYTES <= size <= len(self._bytes) or not self._lock.acquire(blocking=False):
            with INLINE.sending(request, columns) as body:
                yield body
            return
        try:
            wire.put_columns(self._bytes, columns)
            yield wire.pack_header({**request, "memory": self.address, "bytes": size}, len(columns[0]))
        finally:
            self._lock.release()

    def close(self):
        self._memory.close()


class ReceivedColumns:
    """Opens, at a service, the memory that clients of its host leave columns in.

    Threads: any.
    """

    def __init__(self):
        self._opened, self._lock = {}, threading.Lock()

    def read(self, address, size):
        """-> uint8[size], what the client has left.

        Args:
          address: str, the `SharedMemory`'s.
          size: bytes.

        Raises:
          UserError: there is no such memory, or it has fewer bytes.
        """
        with self._lock:
            if address not in self._opened:
                memory = SharedMemory(address)
                self._opened[address] = memory, memory.array(_NAME, np.uint8, most_rows=wire.MOST_BYTES).array
            _, array = self._opened[address]
        if not 0 <= size <= len(array):
            raise UserError(f"a request of {size} bytes in memory that has {len(array)}")
        return array[:size]

    def can_read(self, address):
        """-> whether there is memory of that address, of this host and user."""
        try:
            self.read(address, 0)
        except UserError:
            return False
        return True

    def forget(self):
        """Lets go of all memory: the clients of another training have their own."""
        with self._lock:
            for memory, _ in self._opened.values():
                memory.close()  # A request that reads it still has the pages.
            self._opened.clear()
