"""The stores that embedding rows live in: one for a training, one for an evaluation or a prediction."""

import contextlib
import dataclasses
import json
import socket

import numpy as np

from ctr_trainer.embedding.memory.growable_array import keep_freed_memory
from ctr_trainer.embedding.memory.memory_limits import tightest
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.guard import Guard
from ctr_trainer.embedding.service.lease import Lease
from ctr_trainer.embedding.service.local_service import LocalServices, Watch
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.shared_table import PublishedTables, SharedTables
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import reach
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.notices import Placement
from ctr_trainer.settings.run_config import RunConfig

# Of a row, besides its floats: its key, its place in the index, its version.
_BYTES_BESIDE_ROW = 8 + 5 + 4
# For the messages of a sync, which are of `wire.PAGE_BYTES` and come and go together.
_KEPT_BYTES = 256 << 20


@contextlib.contextmanager
def open_host_memory():
    """Gives `SharedMemory` of this host's workers, made by its first rank; it ends with the block. A collective."""
    own = SharedMemory() if distributed.local_rank() == 0 else None
    address = _of_this_host(own and own.address)
    with contextlib.closing(own or SharedMemory(address)) as memory:
        yield memory
        # The memory goes with the rank that made it, and its others may still be reading.
        distributed.barrier("host_memory_close")


def any_host_has_several_workers():
    """A collective."""
    return distributed.all_sum(np.int64(distributed.local_size() > 1), "ranks_beside_others") > 0


def _of_this_host(address):
    """Returns the `address` that the first rank of this host gave. A collective."""
    line = json.dumps({"host": socket.gethostname(), "address": address}) + "\n"
    lines = distributed.all_gather(np.frombuffer(line.encode(), np.uint8), "host_memory").tobytes()
    ranks = [json.loads(line) for line in lines.decode().splitlines()][: distributed.rank() + 1]
    # The last one up to this rank: horovodrun may have been given one machine under two names.
    return [rank["address"] for rank in ranks if rank["address"] and rank["host"] == socket.gethostname()][-1]


def copies_of_hosts(config):
    """Whether the workers of a host train one copy of the rows that a service has; `config` is an EmbeddingConfig."""
    if config.row_copies != "auto":
        return config.row_copies == "host"
    return not config.strict_sync and SharedMemory.is_possible()


class EvaluationStore:
    """Rows of a checkpoint, once on each host: in the process of a lone rank, else in memory that its ranks share.

    Every host reads the checkpoint's files itself.

    Attributes:
      store: a `LocalStore`.
    """

    def __init__(self, memory=None):
        """`memory`: `SharedMemory` of the ranks of this host; None if each rank has rows of its own."""
        self._fills = memory is None or memory.is_own
        self.store = LocalStore() if memory is None else LocalStore(SharedTables(memory))

    def restore(self, checkpoint):
        """Reads the rows of the store's tables, on one rank of each host. A collective.

        Raises:
          UserError: the rows do not fit into memory, or a file of them cannot be read.
        """
        if self._fills:
            files = [entry for entry in checkpoint.tables if entry["table"] in self.store.tables]
            _refuse_too_many(self.store, files, checkpoint.path)
            self.store.restore(checkpoint.path, files)
        distributed.barrier("evaluated_rows_restored")


@contextlib.contextmanager
def open_evaluation_store():
    """Gives an `EvaluationStore` without tables. A collective."""
    if not SharedMemory.is_possible() or not any_host_has_several_workers():
        yield EvaluationStore()
        return
    with open_host_memory() as memory:
        yield EvaluationStore(memory)


def _refuse_too_many(store, files, path):
    rows = {}
    for entry in files:
        if entry.get("kind", "full") == "full":
            rows[entry["table"]] = rows.get(entry["table"], 0) + entry["rows"]
    needed = sum(n * (4 * store.tables[name].config.width + _BYTES_BESIDE_ROW) for name, n in rows.items())
    limit = tightest()
    if needed > limit.free:
        raise UserError(
            f"{path}: its {sum(rows.values())} rows take at least {needed / 1e9:.2f} GB, and {limit.name} "
            f"({socket.gethostname()}) has {limit.free / 1e9:.2f} GB of memory left. An evaluation reads all rows on "
            "each of its hosts: run it where there is more memory"
        )


def in_fixed_order(config: RunConfig) -> RunConfig:
    """Returns the settings of a deterministic run, which syncs strictly unless its workers share one copy of the rows.

    Args:
      config: with `deterministic`.

    Raises:
      SettingError: one copy of the rows per host is asked for, and there are several hosts.
    """
    rows = config.embedding
    is_one_host = distributed.local_size() == distributed.size()
    if distributed.size() == 1 or (is_one_host and (rows.service == "shared" or copies_of_hosts(rows))):
        return config
    if rows.row_copies == "host":
        raise rows.refused(
            "{row_copies}: with several hosts, a deterministic run keeps one copy of the rows per worker and syncs "
            "strictly: leave out {row_copies:name}"
        )
    return dataclasses.replace(config, embedding=dataclasses.replace(rows, strict_sync=True))


@contextlib.contextmanager
def open_store(config, model_dir, is_published=False, services=None):
    """Gives the store that `config.service` names; local services, or shared memory, that it made end with the block.

    A collective where there are several workers. Running shards are this training's alone until the end of the block.

    Args:
      config: `EmbeddingConfig`.
      model_dir: of the training.
      is_published: whether a thread beside the steps publishes the rows.
      services: `LocalServices` for `auto`, which may have been started; None for new ones.

    Raises:
      UserError: `auto` or `shared` was asked for workers on several hosts, the service does not start, or another
        training uses it.
    """
    with contextlib.ExitStack() as stack:
        memory = None
        if copies_of_hosts(config) and config.service != "shared" and any_host_has_several_workers():
            memory = stack.enter_context(open_host_memory())
        services = services or LocalServices.of(config, model_dir)
        yield stack.enter_context(_open_store(config, model_dir, memory, is_published, services))


@contextlib.contextmanager
def _open_store(config, model_dir, host_memory, is_published, services):
    """As `open_store`; `host_memory` is the store's."""
    if config.service not in ("auto", "shared"):
        security, addresses = ClientSecurity.read(*vars(config.security).values()), config.service.split(",")
        if not distributed.is_one_machine():
            _refuse_loopback(addresses)
        with _leased(config, model_dir, addresses, security, host_memory) as client:
            yield client
        return
    if distributed.size() == 1:
        yield LocalStore(PublishedTables() if is_published else Table)
        return
    if distributed.local_size() != distributed.size():
        raise UserError(
            f"--embedding_service={config.service} is for workers on one host; start `python -m ctr_trainer serve` on "
            "a host that all of them reach and name it: --embedding_service=host:port"
        )
    if config.service == "shared":
        with open_host_memory() as memory:
            place = distributed.local_rank(), distributed.local_size()
            yield LocalStore(SharedTables(memory, *place, is_published))
        return
    with contextlib.ExitStack() as stack:
        started, watches = None, []
        if distributed.is_chief():
            cores = distributed.service_cores(config.service_shards, notes().step_plan.steps_wait)
            watches = stack.enter_context(services.running(cores, distributed.host_cores()))
            started = [(service.address, service.token, service.pid, service.log_file) for service in watches]
        started = distributed.broadcast_object(started, "embedding_services")
        if not watches:
            watches = [stack.enter_context(contextlib.closing(Watch(pid, log))) for _, _, pid, log in started]
        ended = [watch.ended for watch in watches]
        addresses, (token, *_), *_ = zip(*started, strict=True)
        security = ClientSecurity(token)
        client = stack.enter_context(_leased(config, model_dir, addresses, security, host_memory, ended))
        yield Guard(client) if config.service_restarts else client


def _refuse_loopback(addresses):
    """Raises UserError where a `host:port` leads to this host itself, wherever it is asked for."""
    for address in addresses:
        if own := reach.loopback_of(address):
            name, here = address.rpartition(":")[0], socket.gethostname()
            raise UserError(
                f"embedding service {address}: on {here} the name {name} leads to {own}, which is {here} itself, and "
                "other hosts have workers too. Name an address that all hosts reach, or correct /etc/hosts of "
                f"{here}, where Debian puts a host's own name at 127.0.1.1"
            )


@contextlib.contextmanager
def _leased(config, model_dir, addresses, security, host_memory, ended=()):
    """Gives a client that writes, by a lease that all workers share. A collective."""

    def opened(lease):
        return contextlib.closing(ServiceClient(addresses, config.service_timeout, security, lease, ended, host_memory))

    keep_freed_memory(_KEPT_BYTES)
    lease, client = None, None
    with contextlib.ExitStack() as stack:
        if distributed.is_chief():
            lease = Lease.new(model_dir, Placement.of_this_process().job)
            client = stack.enter_context(opened(lease))
            stack.callback(client.release)  # Also after an error: the training that resumes from it need not wait.
        lease = distributed.broadcast_object(lease and dataclasses.asdict(lease), "embedding_service_lease")
        if client is None:
            lease = Lease(**lease)
            client = stack.enter_context(opened(lease))
        yield client
        # The others may still be talking to the service that rank 0 is about to give back, or to stop.
        distributed.barrier("embedding_service_close")
