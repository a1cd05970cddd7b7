"""The requests that read and change the rows of a service, see `wire`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.lease import Incarnation, LeaseBook
from ctr_trainer.embedding.service.service_metrics import ServiceMetrics
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.system.messages.errors import UserError

_NAME = "columns"
# A request with fewer bytes is sent inline, because shared memory would save nothing.
_LEAST_BYTES = 64 << 10
# The requests that need the lease.
_WRITES = ("put", "sync")


class SentColumns:
    """Sends columns after their request, or puts them into shared memory and sends their address. It is thread-safe.

    A socket copies each byte several times: a sync of 187,000 rows of 34 floats took 46 ms of the two processes' time,
    and takes 24 ms through shared memory. While one request uses the memory, or after one has failed, other requests
    are sent inline.
    """

    def __init__(self) -> None:
        self._memory: SharedMemory | None = None
        self._bytes = np.empty(0, np.uint8)
        self._lock = threading.Lock()

    def share(self, ask: Callable[[dict[str, Any]], bool]) -> None:
        """Uses shared memory from now on if `ask` finds that the service can read it at the address `memory`."""
        if self._memory is not None:
            return
        memory = SharedMemory()
        array = memory.array(_NAME, np.uint8, most_rows=wire.MOST_BYTES).array
        if ask({"memory": memory.address}):
            self._memory, self._bytes = memory, array
        else:
            memory.close()

    @contextlib.contextmanager
    def sending(self, request: dict[str, Any], columns: Sequence[np.ndarray]) -> Iterator[bytes]:
        """Yields the bytes to send with C-contiguous columns of one length; end the block after the answer."""
        size, memory = wire.columns_bytes(columns), self._memory
        is_fit = _LEAST_BYTES <= size <= len(self._bytes)
        if memory is None or not is_fit or not self._lock.acquire(blocking=False):
            yield wire.pack(request, columns)
            return
        wire.put_columns(self._bytes, columns)
        yield wire.pack_header({**request, "memory": memory.address, "bytes": size}, len(columns[0]))
        self._lock.release()  # Not after an error: a service that hung may yet read the columns.

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()


class ReceivedColumns:
    """Opens, in a service, the shared memory in which clients on its host put columns. It is thread-safe."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[SharedMemory, np.ndarray]] = {}
        self._lock = threading.Lock()

    def read(self, address: str, size: int) -> np.ndarray:
        """Returns uint8[size], the bytes at `address`; raises UserError if the memory has fewer."""
        with self._lock:
            if address not in self._opened:
                memory = SharedMemory(address)
                self._opened[address] = memory, memory.array(_NAME, np.uint8, most_rows=wire.MOST_BYTES).array
            _, array = self._opened[address]
        if not 0 <= size <= len(array):
            raise UserError(f"a request of {size} bytes in memory that has {len(array)}")
        return array[:size]

    def can_read(self, address: str) -> bool:
        """Returns whether `address` is shared memory of this host and user."""
        try:
            self.read(address, 0)
        except UserError:
            return False
        return True

    def forget(self) -> None:
        """Closes all memory, because the clients of another training have their own."""
        with self._lock:
            for memory, _ in self._opened.values():
                memory.close()  # A running request keeps the pages.
            self._opened.clear()


class RowRequests:
    """Answers row requests from a store. Writes need the lease, and no request uses rows of another incarnation."""

    names = ("pull", *_WRITES)

    def __init__(
        self,
        store: LocalStore,
        columns: ReceivedColumns,
        metrics: ServiceMetrics,
        leases: LeaseBook,
        incarnation: Incarnation,
    ) -> None:
        self._store, self._columns, self._metrics = store, columns, metrics
        self._leases, self._incarnation = leases, incarnation

    def answer(self, op: str, body: pa.Buffer) -> list[flight.Result]:
        """Returns the results of a request, one of `names`."""
        request, start = wire.unpack_header(body)
        table, count = request["table"], request["count"]
        known = table if table in self._store.tables else ""  # A metric has no label that a client made up.
        pusher = str(request["worker"]) if op in _WRITES else None
        with self._metrics.measure(op, known, count, pusher):
            newer = self._carry_out(op, request, body, start)
        return wire.answer({"count": count}) if newer is None else wire.newer_answer(newer)

    def _carry_out(self, op: str, request: dict[str, Any], body: wire.Body, start: int) -> ChangedRows | None:
        """Makes a request, whose columns begin at `start` of `body`; returns the rows to answer with, if any."""
        if "memory" in request:
            body, start = self._columns.read(str(request["memory"]), int(request["bytes"])), 0
        self._incarnation.check(request.get("incarnation"))
        table, count = request["table"], request["count"]
        lanes = self._store.config(table).form.lanes
        if op in _WRITES:
            self._leases.renew(request.get("lease"), op)
            worker, sequence = str(request["worker"]), int(request["sequence"])
        layout: list[tuple[str, int | None]] = [wire.KEYS]
        if op in ("pull", "sync"):
            layout.append(wire.VERSIONS)
        if op in _WRITES:
            layout.append(wire.rows_of(lanes))
        keys, *columns = wire.unpack_columns(body, start, table, count, layout)
        if op not in _WRITES:
            wire.refuse_long_answer(table, count, lanes)
        # While the store works on the request, its rows are not replaced.
        with self._incarnation.within(request.get("incarnation")):
            if op == "pull":
                return self._store.pull(table, keys, columns[0])
            if op == "sync":
                return self._store.sync(table, keys, columns[1], worker, sequence, columns[0])
            self._store.put(table, keys, columns[0], worker, sequence)
            return None
