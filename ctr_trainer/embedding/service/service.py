"""The embedding lookup service, which serves the tables of a job to its workers over Arrow Flight."""

import concurrent.futures
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.lease import Incarnation, LeaseBook, LeaseHeld, Replaced, Restarted
from ctr_trainer.embedding.service.row_requests import ReceivedColumns, RowRequests
from ctr_trainer.embedding.service.security import Gate, ServerSecurity
from ctr_trainer.embedding.service.service_metrics import ServiceMetrics
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.cold_rows import Disk
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.measuring.latency import resident_bytes
from ctr_trainer.system.messages.errors import UserError, is_loss
from ctr_trainer.system.processes import hardware
from ctr_trainer.system.processes.waiting import in_thread

# One thread writes a checkpoint, one writes an epoch of a publication.
_FILE_THREADS = 2
# The lock of a killed service, in an object store, is free when it was not renewed for about so many seconds. A `hello`
# that has to wait for it is answered sooner, and its client asks again.
_LOCK_SECONDS, _LOCK_ANSWER_SECONDS = 32.0, 2.0
_ADVANCE_SECONDS = 0.5  # Less than any client waits for an answer.
# The actions that need the lease, and the actions that do not depend on the incarnation of the rows.
_WRITES = ("create_table", "save", "publish", "advance", "restore")
_OF_ANY_ROWS = ("hello", "renew", "release", "create_table", "restore")


class Service(flight.FlightServerBase):
    """A Flight server for a LocalStore. It answers requests from its construction until `shutdown`.

    The answer to an invalid request is INVALID_ARGUMENT, and the request changes nothing. A request that changes or
    saves rows needs the lease that this service has given to one training. A request may name the incarnation that it
    expects. So a client detects when its rows no longer exist: after a restart, a `restore`, or when another training
    has taken the lease.

    Any Flight client may read: `list_flights` lists the tables, and `do_get` streams the table that its ticket names.
    """

    def __init__(
        self,
        host: str,
        port: int,
        data_dir: str | os.PathLike,
        security: ServerSecurity = ServerSecurity(),  # noqa: B008
        leases: LeaseBook | None = None,
        file_cores: set[int] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Listens on host:port; port 0 picks a free one.

        Args:
          data_dir: the only directory to which snapshots are written and from which they are read.
          file_cores: the cores on which files of rows are written, at a lower priority than requests and workers; None
            for all. All workers of a step wait for a worker on whose core a checkpoint is written.
          disk: the place of rows that do not fit into its memory.
        """
        self.incarnation = Incarnation()
        self._leases = leases or LeaseBook()
        self._store, self._columns = LocalStore(disk=disk), ReceivedColumns()
        self.metrics = ServiceMetrics(self._store.stats)
        self._data_dir = path_of(data_dir).resolve()
        self._file_threads = concurrent.futures.ThreadPoolExecutor(
            _FILE_THREADS, "files of rows", hardware.step_back, (file_cores,)
        )
        self._place: tuple[int, int] | None = None
        self._place_lock = threading.Lock()
        self._directory_lock: concurrent.futures.Future[Any] | None = None
        self._directory_asked = 0.0
        self._actions = {
            "hello": self._hello,
            "renew": lambda body: self._leases.renew(body.get("lease"), "renew"),
            "release": lambda body: self._leases.release(body.get("lease")),
            "create_table": lambda body: self._store.create_table(snapshot.config_from_json(body["config"])),
            "publish": self._publish,
            "copy": self._copy,
            "advance": self._advance,
            "restore": self._restore,
            "read_memory": lambda body: {"is_read": self._columns.can_read(str(body["memory"]))},
            "stats": lambda body: self._stats(),
            "tables": lambda body: [self._layout(name) for name in sorted(self._store.tables)],
        }
        self._row_requests = RowRequests(self._store, self._columns, self.metrics, self._leases, self.incarnation)
        gate = {"gate": Gate(security.token)}
        super().__init__(security.location(host, port), middleware=gate, **security.server_options())

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterable[flight.Result]:
        """Answers an action or row request that `__init__` lists, see `wire`."""
        with _typed_errors():
            if action.type in self._row_requests.names:
                return self._row_requests.answer(action.type, action.body)
            if action.type not in (*self._actions, "save"):
                known = ", ".join(["save", *self._actions, *self._row_requests.names])
                raise UserError(f"no action {action.type!r}; there are: {known}")
            most = wire.MOST_FILES_BYTES if action.type == "restore" else wire.MOST_JSON_BYTES
            body = wire.from_json(action.body, most)
            check = self.incarnation.check_process if action.type in _OF_ANY_ROWS else self.incarnation.check
            check(body.get("incarnation"))  # Refuses requests for other rows.
            if action.type in _WRITES:
                self._leases.renew(body.get("lease"), action.type)
            if self._place is None and action.type in ("save", "publish", "restore"):
                raise UserError(f"{action.type}: say hello first, with this service's shard and the number of shards")
            if action.type == "save":
                return self._save(body)
            return [flight.Result(wire.to_json(self._actions[action.type](body)))]

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        for name in sorted(self._store.tables):
            yield self._info(name)

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        with _typed_errors():
            if len(descriptor.path) != 1:
                raise UserError(f"a table's path is its name, not {descriptor.path}")
            return self._info(descriptor.path[0].decode())

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Streams the table that the ticket names. Rows that are created meanwhile may be missing.

        Fails if the rows are replaced meanwhile, as a restore does.
        """
        with _typed_errors():
            name, incarnation = ticket.ticket.decode(), str(self.incarnation)
            config = _readable(self._store.config(name))
            schema = snapshot.schema(config)

        def batches() -> Iterator[pa.RecordBatch]:
            with _typed_errors():
                for keys, rows in self._store.read_blocks(name):
                    self.incarnation.check(incarnation)
                    arrays = [snapshot.key_array(keys), snapshot.row_array(config, rows)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                self.incarnation.check(incarnation)

        return flight.GeneratorStream(schema, batches())

    def _info(self, name: str) -> flight.FlightInfo:
        config, rows = _readable(self._store.config(name)), self._store.stats()["tables"][name]["rows"]
        endpoints = [flight.FlightEndpoint(name.encode(), [])]
        descriptor = flight.FlightDescriptor.for_path(name)
        return flight.FlightInfo(snapshot.schema(config), descriptor, endpoints, rows, rows * (config.width * 4 + 8))

    def _layout(self, name: str) -> dict[str, Any]:
        config, rows = self._store.config(name), self._store.stats()["tables"][name]["rows"]
        return {**config.to_dict(), "width": config.width, "rows": rows}

    def _hello(self, body: dict[str, Any]) -> dict[str, Any]:
        place = (int(body["shard"]), int(body["shards"]))
        if not 0 <= place[0] < place[1]:
            raise UserError(f"hello: no shard {place[0]} of {place[1]}; they are counted from 0")
        owner = Owner.parse(body.get("lease"))
        if owner is None and body.get("lease") is not None:
            fields = ", ".join(field.name for field in dataclasses.fields(Owner))
            raise UserError(f"not a lease, which has {fields}: {body['lease']!r}")
        with self._place_lock:
            if self._place is not None and self._place != place:
                raise UserError(
                    f"this service is shard {self._place[0]} of {self._place[1]} (counted from 0), not {place[0]} of "
                    f"{place[1]}: name the same addresses in the same order on every worker, or restart the services"
                )
            if owner is not None:
                self._place = place
                self._store.take_place(*place)
                self._lock_directory(*place)
                if self._leases.take(owner):
                    self._columns.forget()
                    with self.incarnation.replaced(f"{owner} has taken this service over"):
                        pass
        return {"incarnation": str(self.incarnation), "is_only_job": self._leases.is_only_job(owner)}

    def _lock_directory(self, shard: int, shards: int) -> None:
        """Takes the lock on this shard's files, so that no other service writes them; LeaseHeld if this takes long."""
        if self._directory_lock is None:
            path = self._data_dir / f".shard-{shard:05d}-of-{shards:05d}.lock"
            refusal = (
                f"saves in {self._data_dir} as shard {shard} of {shards}: if another job trains this model, end it, or "
                "use another directory"
            )
            self._directory_asked = time.monotonic()
            self._directory_lock = in_thread(lambda: path.hold(lambda holder: f"another service ({holder}) {refusal}"))
        concurrent.futures.wait([self._directory_lock], _LOCK_ANSWER_SECONDS)
        if not self._directory_lock.done():
            left = max(self._directory_asked + _LOCK_SECONDS - time.monotonic(), 0.5)
            raise LeaseHeld(f"a service that saved in {self._data_dir}", self._directory_asked, left)
        if self._directory_lock.exception():
            taken, self._directory_lock = self._directory_lock, None  # The next `hello` tries again.
            taken.result()

    def _stats(self) -> dict[str, Any]:
        return {
            **self._store.stats(),
            "latencies": {latency.name: latency.percentiles() for latency in self.metrics.latencies},
            "histograms": {latency.name: latency.encoded() for latency in self.metrics.latencies},
            "requests": self.metrics.requests(),
            "cpu_seconds": time.process_time(),
            "resident_bytes": resident_bytes(),
        }

    def leave_directory(self) -> None:
        """Releases the lock on this shard's files in the data_dir, and removes its rows on disk."""
        self._store.close()
        if self._directory_lock is not None:
            self._directory_lock.add_done_callback(lambda lock: lock.exception() or lock.result().close())

    def _advance(self, body: dict[str, Any]) -> tuple[str, int] | None:
        """Returns the place from which the client's next request must continue, as `at`; None at the end."""
        name, slot = body.get("at", ("", 0))
        with self.incarnation.within(body.get("incarnation")):
            return self._store.advance_within(int(body["step"]), _ADVANCE_SECONDS, str(name), max(int(slot), 0))

    def _save(self, body: dict[str, Any]) -> Iterator[flight.Result]:
        """Yields two results, see `LocalStore.saving`. Rows may change after the first result."""
        with _typed_errors():
            path, since, identity = self._inside(body["path"]), body.get("since"), body.get("snapshot")
            saving = self._store.saving(path, int(body["step"]), since, identity, bool(body.get("by_key")))
            with contextlib.closing(saving):
                yield flight.Result(wire.to_json(next(saving)))
                yield flight.Result(wire.to_json(self._file_threads.submit(next, saving).result()))

    def _publish(self, body: dict[str, Any]) -> list[FileEntry]:
        path, after = self._inside(body["path"]), body.get("after")
        after = None if after is None else int(after)
        epoch, dtype = int(body["epoch"]), str(body["dtype"])
        return self._file_threads.submit(self._store.publish, path, epoch, dtype, after).result()

    def _copy(self, body: dict[str, Any]) -> list[FileEntry]:
        """Saves all rows into a directory without files of this shard; any client may request it."""
        shard, shards = self._place or (0, 1)
        path, own = self._inside(body["path"]), f"-{shard:05d}-of-{shards:05d}."
        there = next((each for each in path.iterdir() if own in each.name), None) if path.is_dir() else None
        if there is not None:
            raise UserError(f"{there} exists already, and a copy replaces no file: name a new directory")
        return self._store.save(path, 0)

    def _restore(self, body: dict[str, Any]) -> dict[str, Any]:
        path, files = self._inside(body["path"]), body["files"]
        replacing = self.incarnation.replaced(f"{self._leases.holder} has restored other rows, from {path}")
        self._store.restore(path, files, replacing=replacing)
        return {"incarnation": str(self.incarnation)}

    def _inside(self, path: str) -> Any:
        resolved = (self._data_dir / path_of(str(path))).resolve()
        if not resolved.is_relative_to(self._data_dir):
            raise UserError(f"snapshot path {path} is outside the service's data_dir {self._data_dir}")
        return resolved


def _readable(config: TableConfig) -> TableConfig:
    """Returns the configuration with rows of float32, which any Flight client reads."""
    return dataclasses.replace(config, row_dtype="float32")


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    """Turns the errors of a request into Flight errors, most of them into INVALID_ARGUMENT."""
    try:
        yield
    except UserError as error:
        if is_loss(error):  # For example, the file system of the snapshots does not answer.
            raise flight.FlightServerError(f"{wire.LOST}{error}") from None
        raise pa.ArrowInvalid(str(error)) from None
    # These become other Flight errors, so that the client can distinguish them from an invalid request.
    except Restarted:
        raise flight.FlightServerError(wire.RESTARTED) from None
    except Replaced as error:
        raise flight.FlightServerError(f"{wire.REPLACED}{error}") from None
    except LeaseHeld as error:
        raise flight.FlightServerError(wire.HELD + wire.to_json(vars(error)).decode()) from None
    except KeyError as error:
        raise pa.ArrowInvalid(f"the request lacks {error}") from None
    except pa.ArrowException:
        raise
    # A value in a request's JSON with a wrong type raises one of these when it is used.
    except (TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        if is_loss(error):
            raise flight.FlightServerError(f"{wire.LOST}{error}") from None
        raise pa.ArrowInvalid(f"bad request: {error}") from None
