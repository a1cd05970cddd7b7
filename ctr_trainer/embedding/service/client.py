"""The Store whose rows are in one or more embedding services."""

import collections
import concurrent.futures
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctr_trainer.embedding.index.key_kernels import shard_of
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.lease import LEASE_SECONDS, ServicePlace
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.service.shard import Shard
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.versions import NONE_KNOWN, ChangedRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.lease import Lease, Owner
from ctr_trainer.system.files.paths import Advanced, AnyPath, path_of
from ctr_trainer.system.messages.errors import ServiceLost, UserError
from ctr_trainer.system.processes.waiting import in_thread

_POLL_SECONDS = 0.5


class ServiceClient(Store):
    """A Store over S services. Service number i of the list owns the keys with hash(key) % S == i.

    The client repeats a request that gets no answer, with the same sequence, until `timeout` has passed. So a sync is
    applied once even if its answer was lost. A request raises an error if the service was restarted, because it has
    lost the updates since the last checkpoint, or if another client's `restore` has replaced the rows. The
    client is thread-safe.

    Without a lease the client can only read, and the service refuses its writes. A lease belongs to one training, and
    all workers of the training send the same lease. A thread renews it until `close`; `release` returns it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        timeout: float,
        security: ClientSecurity = ClientSecurity(),  # noqa: B008, it is frozen
        lease: Owner | None = None,
        ended: Sequence[Callable[[], str | None] | None] = (),
        host_memory: SharedMemory | None = None,
        by_socket: bool = False,
    ) -> None:
        """Connects. Waits up to `timeout` for each service, and until the lease of a dead training expires.

        Args:
          addresses: sequence of `host:port`, the same in the same order on every worker.
          timeout: maximum seconds for a request, including retries.
          lease: `Owner` of the lease; None to only read.
          ended: for each service, a function that returns None, or a text if its process has ended; then requests fail
            at once. () if this is not known.
          by_socket: whether large requests use the socket even if shared memory is possible, see `SentColumns`.

        Raises UserError, which names the service, if it does not answer, refuses the token, is another shard for
        another worker, or is used by another training.
        """
        if not addresses:
            raise UserError("no address of an embedding service was given")
        shards = len(addresses)
        self._shards = [
            Shard(address, i, shards, timeout, security, lease, each, by_socket)
            for i, (address, each) in enumerate(zip(addresses, ended or [None] * shards, strict=True))
        ]
        self._threads = concurrent.futures.ThreadPoolExecutor(shards) if shards > 1 else None
        self._configs: dict[str, TableConfig] = {}
        self._owner, self._lease, self.host_memory = lease, None, host_memory
        try:
            if lease is not None:
                self._lease = Lease(ServicePlace(self._shards), lease, LEASE_SECONDS, renewals=10)
            self._on_all(lambda shard: shard.hello())
        except BaseException:
            self.release()
            self.close()
            raise

    def create_table(self, config: TableConfig) -> None:
        body = {"config": snapshot.config_to_json(config)}
        self._on_all(lambda shard: shard.action("create_table", body))
        self._configs[config.name] = config

    def pull(self, table: str, keys: np.ndarray, versions: np.ndarray) -> ChangedRows:
        request = dict(op="pull", table=table)
        keys, versions = np.require(keys, np.int64, ("C",)), np.require(versions, np.uint32, ("C",))
        answers = []
        for page in _pages(len(keys), self._config(table).form.lanes):
            answers.append((page, self._newer(request, [keys[page], versions[page]], is_sync=False)))
        return _joined(len(keys), answers)

    def put(self, table: str, keys: np.ndarray, rows: np.ndarray, worker: str, sequence: int) -> None:
        request = dict(op="put", table=table, worker=worker, sequence=sequence)
        keys, rows = np.require(keys, np.int64, ("C",)), np.require(rows, np.float32, ("C",))
        self._check(table, keys, rows)
        self._ask(request, [keys, rows], lambda results, _: wire.read_done(results))

    def sync(
        self,
        table: str,
        keys: np.ndarray,
        deltas: np.ndarray,
        worker: str,
        sequence: int,
        versions: np.ndarray | None = None,
    ) -> ChangedRows:
        request = dict(op="sync", table=table, worker=worker, sequence=sequence)
        keys, deltas = np.require(keys, np.int64, ("C",)), np.require(deltas, requirements=("C",))
        self._check(table, keys, deltas)
        if versions is None:
            versions = np.full(len(keys), NONE_KNOWN, np.uint32)
        return self._newer(request, [keys, versions, deltas], is_sync=True)

    def advance(self, step: int) -> None:
        def advance(shard: Shard) -> None:
            at: Any = ("", 0)
            while at is not None:  # If very many rows expire, each request evicts some of them.
                at = shard.action("advance", {"step": step, "at": at})

        self._on_all(advance)

    def begin_save(
        self, path: AnyPath, step: int, since: str | None = None, by_key: bool = False
    ) -> Callable[[], list[FileEntry]]:
        body = {"path": _absolute(path), "step": step, "since": since, "snapshot": uuid.uuid4().hex, "by_key": by_key}
        begun = self._on_all(lambda shard: shard.begin_save(body))

        def finish() -> list[FileEntry]:
            files, errors = [], []
            for _, finish_own in begun:  # Raises an error only after all shards have stopped writing.
                try:
                    files += finish_own()
                except (UserError, ServiceLost) as error:
                    errors.append(error)
            if errors:
                raise errors[0]
            return files

        if len({base for base, _ in begun}) > 1:
            finish()
            return self.begin_save(path, step, by_key=by_key)  # If one shard writes all rows, all shards must.
        return finish

    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None = None) -> list[FileEntry]:
        body = {"path": _absolute(path), "epoch": epoch, "dtype": dtype, "after": after}
        return self._files_of_all("publish", body)

    def copy(self, path: AnyPath) -> list[FileEntry]:
        """Writes all rows into the directory `path`, replacing no files; needs no lease. Returns the same as `save`."""
        return self._files_of_all("copy", {"path": _absolute(path)})

    def restore(self, path: AnyPath, files: Sequence[FileEntry], advanced: Advanced = lambda text: None) -> None:
        body = {"path": _absolute(path), "files": list(files)}
        done = in_thread(lambda: self._on_all(lambda shard: shard.restore(body)))
        while not concurrent.futures.wait([done], _POLL_SECONDS).done:
            advanced(f"the embedding service is restoring {path}")
        done.result()

    def reopen(self) -> None:
        self._on_all(lambda shard: shard.hello())

    def look(self) -> None:
        for shard in self._shards:
            shard.look()

    def release(self) -> None:
        """Returns the lease, so that another training need not wait. Its workers can no longer write."""
        self._on_all(lambda shard: shard.at_once("release"))

    def stats(self) -> dict[str, Any]:
        """Returns the totals of all shards, as `Store.stats`, and each shard's values by address under `services`."""
        services = dict(self._on_all(lambda shard: (shard.address, shard.action("stats", {}))))
        tables: dict[str, collections.Counter[str]] = {}
        for service in services.values():
            for name, figures in service["tables"].items():
                tables.setdefault(name, collections.Counter()).update(figures)
        return {"tables": tables, "services": services}

    def tables(self) -> list[dict[str, Any]]:
        """Returns a dict per table: its `TableConfig`, its `width` and its total `rows` over all shards."""
        layouts: dict[str, dict[str, Any]] = {}
        for tables in self._on_all(lambda shard: shard.action("tables", {})):
            for table in tables:
                rows = layouts.get(table["name"], {"rows": 0})["rows"]
                layouts[table["name"]] = {**table, "rows": rows + table["rows"]}
        return list(layouts.values())

    @property
    def has_own_rows(self) -> bool:
        return all(shard.is_only_job for shard in self._shards)

    @property
    def silent_seconds(self) -> float:
        return max(shard.silence.seconds for shard in self._shards)

    def close(self) -> None:
        if self._lease:
            self._lease.close()
        if self._threads:
            self._threads.shutdown()
        for shard in self._shards:
            shard.close()

    def _config(self, table: str) -> TableConfig:
        if table not in self._configs and self._owner is None:
            for layout in self.tables():
                own = {name: value for name, value in layout.items() if name not in ("width", "rows")}
                self._configs[layout["name"]] = TableConfig.from_dict(own)
        if table not in self._configs:
            raise UserError(f"no table {table!r}: this client has not created it")
        return self._configs[table]

    def _check(self, table: str, keys: np.ndarray, deltas: np.ndarray) -> None:
        shape = [len(keys), self._config(table).form.lanes]
        if deltas.dtype != np.float32 or list(deltas.shape) != shape:
            raise UserError(f"table {table}: deltas {deltas.dtype}{list(deltas.shape)}, expected float32{shape}")

    def _newer(self, request: dict[str, Any], columns: list[np.ndarray], is_sync: bool) -> ChangedRows:
        """Returns the rows whose versions differ from columns[1], after the request's changes if `is_sync`."""
        lanes = self._config(request["table"]).form.lanes
        answers = self._ask(request, columns, lambda results, own: wire.read_newer(results, lanes, own[1], is_sync))
        return _joined(len(columns[0]), answers)

    def _ask(
        self, request: dict[str, Any], columns: list[np.ndarray], read: Callable[..., Any]
    ) -> list[tuple[Any, Any]]:
        """Sends each shard its part of the columns, the first of which is the keys.

        Returns [(own, read(results, part of the columns)) for each shard]; `own` are the positions of the shard's keys.
        """
        if self._threads is None:
            return [(slice(None), self._shards[0].rows(request, columns, read))]
        keys = columns[0]
        owner = np.empty(len(keys), np.int32)
        shard_of(keys, len(self._shards), owner)
        places = [np.flatnonzero(owner == i) for i in range(len(self._shards))]
        answers = self._on_all(
            lambda shard: shard.rows(request, [column[places[shard.number]] for column in columns], read)
        )
        return list(zip(places, answers, strict=True))

    def _files_of_all(self, action: str, body: dict[str, Any]) -> list[FileEntry]:
        """Returns the entries of the files that an action of each shard writes, while other threads' requests run."""
        with concurrent.futures.ThreadPoolExecutor(len(self._shards)) as threads:
            return [
                file for files in threads.map(lambda shard: shard.action(action, body), self._shards) for file in files
            ]

    def _on_all(self, call: Callable[..., Any]) -> list[Any]:
        """Returns [call(shard) for each shard], called in parallel; waits for all calls before it raises an error."""
        if self._threads is None:
            return [call(self._shards[0])]
        futures = [self._threads.submit(call, shard) for shard in self._shards]
        concurrent.futures.wait(futures)
        return [future.result() for future in futures]


def _pages(count: int, width: int) -> list[slice]:
    """Returns slices of `count` keys, at least one, each small enough to bound the size of the answer."""
    step = wire.rows_a_page(width)
    return [slice(first, min(first + step, count)) for first in range(0, max(count, 1), step)]


def _joined(count: int, answers: list[tuple[Any, ChangedRows]]) -> ChangedRows:
    """Joins the [(index, ChangedRows)] of the parts of a request into one, with ascending positions."""
    if len(answers) == 1:
        return answers[0][1]
    versions, every = np.empty(count, np.uint32), np.arange(count)
    for own, newer in answers:
        versions[own] = newer.versions
    positions = np.concatenate([every[own][newer.positions] for own, newer in answers])
    rows = np.concatenate([newer.rows for _, newer in answers])
    order = np.argsort(positions, kind="stable")
    return ChangedRows(versions, positions[order], rows[order])


def _absolute(path: AnyPath) -> str:
    # A relative path is relative to this process, not to the service's directory.
    return str(path_of(path).absolute())
