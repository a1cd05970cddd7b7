"""Exceptions for a service's errors, and a store that keeps its worker running after a service is lost."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.lease import LeaseHeld
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.row_codec import PLAIN, RowCodec
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import AnyPath
from ctr_trainer.system.messages.errors import Lost, ServiceLost, UserError
from ctr_trainer.system.processes.waiting import Watchdog

# An answer takes milliseconds. After this number of seconds the service counts as silent.
LIMIT_SECONDS = 5.0
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def meanings(address: str) -> Iterator[None]:
    """Turns errors in answers of the service at `address` into the exceptions that they represent."""
    try:
        yield
    except flight.FlightServerError as error:
        raise _meant(address, error) from None
    except (flight.FlightUnauthenticatedError, pa.ArrowInvalid, KeyError) as error:
        raise UserError(f"embedding service {address}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Returns the message of an error without gRPC's context."""
    return str(error).split(". Detail:")[0].split(". gRPC client debug context")[0].splitlines()[0]


def _meant(address: str, error: flight.FlightServerError) -> Exception:
    """Returns the exception that the text of a service's error represents; returns other errors unchanged."""
    text = first_line(error)
    if text.startswith(wire.RESTARTED):
        what = "was restarted: the updates since the last checkpoint are lost"
    elif text.startswith(wire.REPLACED):
        what = f"has other rows now: {text.removeprefix(wire.REPLACED)}. Updates since the last checkpoint are lost"
    elif text.startswith(wire.HELD):
        return LeaseHeld(**wire.json.loads(text.removeprefix(wire.HELD)))
    elif text.startswith(wire.LOST):
        return Lost(f"embedding service {address}: {text.removeprefix(wire.LOST)}")
    else:
        return error
    return ServiceLost(f"embedding service {address} {what}. Restart the same command to resume from it")


class Silence:
    """Reports a service in the log while it does not answer, and totals the time without answers.

    To a worker whose requests wait, at most `timeout` seconds each, a service that hangs (stopped, swapped out, on a
    hanging host) otherwise looks like slow input or slow syncs.

    Attributes:
      seconds: the total time in which at least one request had waited for longer than the limit.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self._watchdog = Watchdog("this worker", math.inf, warning=LIMIT_SECONDS)
        self._watchdog.explain = lambda: (
            f"it, its host or the network hangs; the job ends if this lasts longer than service_timeout={timeout:g} s"
        )
        self._address = address
        self._lock = threading.Lock()
        self._counted_until = -math.inf
        self.seconds = 0.0

    @contextlib.contextmanager
    def waiting(self, request: str) -> Iterator[None]:
        """Watches one request, the body of the `with` statement."""
        began = time.monotonic()
        try:
            with self._watchdog.waiting(f"the embedding service {self._address} to answer `{request}`"):
                yield
        finally:
            ended = time.monotonic()
            if ended - began > LIMIT_SECONDS:
                with self._lock:  # Each second counts once, even if several requests wait.
                    self.seconds += max(ended - max(began, self._counted_until), 0.0)
                    self._counted_until = ended

    def close(self) -> None:
        self._watchdog.close()


class Guard(Store):
    """A Store that replaces a lost service, so that the worker can continue to the next step.

    If only one worker left the training loop, the others would wait in a collective that it never reaches. So the
    worker continues to the next point at which all workers check whether one of them has lost the service. There all
    workers resume from the last checkpoint. Until then a pull returns no newer rows, a push does nothing, and the
    worker's updates are discarded.

    Only the requests of the training loop are guarded. `create_table`, `restore` and similar requests raise their
    errors.
    """

    is_guarded = True

    def __init__(self, store: Store) -> None:
        self._store, self.host_memory = store, store.host_memory
        self._widths: dict[str, int] = {}
        self.lost: ServiceLost | None = None

    def create_table(self, config: TableConfig) -> None:
        self._store.create_table(config)
        self._widths[config.name] = config.width

    def pull(self, table: str, keys: np.ndarray, missing: str = "initial") -> np.ndarray:
        rows = self._guarded(self._store.pull, table, keys, missing)
        return np.zeros((len(keys), self._widths[table]), np.float32) if rows is None else rows

    def pull_newer(self, table: str, keys: np.ndarray, versions: np.ndarray, codec: RowCodec = PLAIN) -> ChangedRows:
        newer = self._guarded(self._store.pull_newer, table, keys, versions, codec)
        return self._nothing_newer(table, versions, codec) if newer is None else newer

    def push(self, table: str, keys: np.ndarray, deltas: np.ndarray, worker: str, sequence: int) -> None:
        self._guarded(self._store.push, table, keys, deltas, worker, sequence)

    def put(self, table: str, keys: np.ndarray, rows: np.ndarray, worker: str, sequence: int) -> None:
        self._guarded(self._store.put, table, keys, rows, worker, sequence)

    def sync(
        self,
        table: str,
        keys: np.ndarray,
        deltas: np.ndarray,
        worker: str,
        sequence: int,
        versions: np.ndarray | None = None,
        codec: RowCodec = PLAIN,
    ) -> ChangedRows:
        newer = self._guarded(self._store.sync, table, keys, deltas, worker, sequence, versions, codec)
        if newer is not None:
            return newer
        known = np.zeros(len(keys), np.uint32) if versions is None else versions
        return self._nothing_newer(table, known, codec)

    def advance(self, step: int) -> None:
        self._guarded(self._store.advance, step)

    def begin_save(self, path: AnyPath, step: int, since: str | None = None) -> Callable[[], list[FileEntry]]:
        """Saves as `Store.begin_save` does; the files are [] if the service is lost."""
        finish = self._guarded(self._store.begin_save, path, step, since)
        return lambda: (self._guarded(finish) if finish else None) or []

    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None = None) -> list[FileEntry]:
        return self._store.publish(path, epoch, dtype, after)

    def restore(self, path: AnyPath, files: Sequence[FileEntry]) -> None:
        self._store.restore(path, files)

    def clear(self) -> None:
        self._store.clear()

    def reopen(self) -> None:
        self._store.reopen()

    def look(self) -> None:
        self._guarded(self._store.look)

    def stats(self) -> dict[str, Any]:
        return self._store.stats()

    @property
    def silent_seconds(self) -> float:
        return self._store.silent_seconds

    def close(self) -> None:
        self._store.close()

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of the call, or None if the service is lost."""
        if self.lost is None:
            try:
                return call(*arguments)
            except ServiceLost as error:
                self.lost = error
                _log.error("%s; continuing up to the next point at which all workers can go back", error)
        return None

    def _nothing_newer(self, table: str, versions: np.ndarray, codec: RowCodec) -> ChangedRows:
        rows = np.empty((0, self._widths[table]), np.float32)
        return ChangedRows(versions.copy(), np.empty(0, np.int64), rows).encoded(codec)
