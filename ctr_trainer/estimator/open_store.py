"""Opens a store of embedding rows, either for training or for evaluation and prediction."""

import contextlib
import dataclasses
import functools
import os
import socket
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.embedding.memory.growable_array import keep_freed_memory
from ctr_trainer.embedding.memory.memory_limits import tightest
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalServices, Watch
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.snapshot.snapshot import COLD
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.cold_rows import Disk, disk_of
from ctr_trainer.estimator.built_model import TrainingJob
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.notices import Placement
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import reach

# In addition to its floats, a row has a key, an entry in the index and a version.
_MORE_BYTES_OF_A_ROW = 8 + 5 + 4
# Freed memory to keep for sync messages, because many buffers of `wire.PAGE_BYTES` are allocated and freed at once.
_KEPT_BYTES = 256 << 20
# The shards' addresses, the credentials for them, and for local shards f() -> how it has ended, None while it runs.
_Service = tuple[list[str], ClientSecurity, list[Callable[[], str | None]]]


@contextlib.contextmanager
def open_host_memory() -> Iterator[SharedMemory]:
    """Yields the `SharedMemory` of this host's workers. The host's first rank creates and removes it. A collective."""
    own = SharedMemory() if distributed.local_rank() == 0 else None
    text = f"{own.address if own else ''}\n".encode()
    addresses = distributed.all_gather(np.frombuffer(text, np.uint8), "host_memory").tobytes().decode().split("\n")
    with contextlib.closing(own or SharedMemory(addresses[distributed.rank() - distributed.local_rank()])) as memory:
        yield memory
        # After an error, or if this rank's caller ends a prediction early, other ranks may still be reading.
        distributed.barrier("host_memory_close")
        memory.remove()


@contextlib.contextmanager
def open_evaluation_store(disk: Disk | None) -> Iterator[LocalStore]:
    """Yields a store without tables, whose memory the ranks of a host share. A collective."""
    if distributed.hosts() == distributed.size():
        with contextlib.closing(LocalStore(disk=disk)) as store:
            yield store
        return
    with open_host_memory() as memory:
        yield LocalStore(memory)


def restore_evaluated(store: LocalStore, checkpoint: Checkpoint) -> None:
    """Reads the rows of the tables of an evaluation's store on the first rank of each host. A collective.

    Raises UserError: the rows do not fit into memory, or one of their files cannot be read.
    """
    if distributed.local_rank() == 0:
        files = [entry for entry in checkpoint.tables if entry["table"] in store.tables]
        # With several ranks, rows that were on disk are read into shared memory.
        kinds = {"full"} if any(table.cold for table in store.tables.values()) else {"full", COLD}
        full, limit = [entry for entry in files if entry["kind"] in kinds], tightest()
        widths = {name: 4 * table.config.form.lanes + _MORE_BYTES_OF_A_ROW for name, table in store.tables.items()}
        needed = sum(entry["rows"] * widths[entry["table"]] for entry in full)
        if needed > limit.free:
            raise UserError(
                f"{checkpoint.path}: its {sum(entry['rows'] for entry in full)} rows take at least {needed / 1e9:.2f} "
                f"GB, and {limit.name} ({socket.gethostname()}) has {limit.free / 1e9:.2f} GB of memory left. An "
                "evaluation reads all rows on each of its hosts: run it where there is more memory"
            )
        store.restore(checkpoint.path, files)
    distributed.barrier("evaluated_rows_restored")


@contextlib.contextmanager
def open_store(job: TrainingJob, steps_wait: bool) -> Iterator[Store]:
    """Yields the store that the `EmbeddingConfig.service` of a training names. A collective with several workers.

    At the end of the block, the local services and the shared memory that were created here are removed. Until then, no
    other training can use the service.

    `steps_wait`: whether the workers wait for each other at each step, see `distributed.service_cores`.

    Raises UserError: `auto` or `shared` with workers on several hosts, the service does not start, or another training
    uses it.
    """
    config, model_dir, is_published = job.config.embedding, job.model_dir, bool(job.config.publish.to)
    is_named = config.service not in ("auto", "shared")
    with contextlib.ExitStack() as stack:
        disk = disk_of(config.disk, model_dir)
        if not is_named and distributed.size() == 1:
            yield stack.enter_context(contextlib.closing(LocalStore(is_published=is_published, disk=disk)))
        elif not is_named and distributed.local_size() != distributed.size():
            raise config.refused(
                "{service} is for workers on one host; start `python -m ctr_trainer serve` on a host that all of them "
                "reach and name it: {service:name}=host:port"
            )
        elif config.service == "shared":
            shared = stack.enter_context(open_host_memory())
            yield LocalStore(shared, is_published)
        else:
            memory, ended = None, list[Callable[[], str | None]]()
            if config.row_copies == "host" and distributed.hosts() < distributed.size():
                memory = stack.enter_context(open_host_memory())
            if is_named:
                files, addresses = config.security, config.service.split(",")
                security = ClientSecurity.read(files.token_file, files.service_ca, files.service_cert)
                if not distributed.is_one_machine():
                    _refuse_loopback(addresses)
            else:
                services = job.services or LocalServices.of(config, model_dir)
                addresses, security, ended = stack.enter_context(_local_service(config, services, steps_wait))
            client = functools.partial(ServiceClient, addresses, config.service_timeout, security, host_memory=memory)
            yield stack.enter_context(_leased(functools.partial(client, ended=ended), model_dir))


@contextlib.contextmanager
def _local_service(config: EmbeddingConfig, services: LocalServices, steps_wait: bool) -> Iterator[_Service]:
    """Yields the `_Service` that rank 0 starts or has already started."""
    with contextlib.ExitStack() as stack:
        started, ended = None, []
        if distributed.is_chief():
            cores = distributed.service_cores(config.service_shards, steps_wait)
            running = stack.enter_context(services.running(cores, distributed.host_cores()))
            started = [(service.address, service.token, service.pid, service.log_file) for service in running]
            ended = [service.ended for service in running]
        started = distributed.broadcast_object(started, "embedding_services")
        if not distributed.is_chief():
            ended = [stack.enter_context(contextlib.closing(Watch(pid, log))).ended for _, _, pid, log in started]
        yield [address for address, *_ in started], ClientSecurity(started[0][1]), ended


def _refuse_loopback(addresses: Sequence[str]) -> None:
    """Raises UserError if a `host:port` resolves to this host's loopback, which other hosts cannot reach."""
    for address in addresses:
        if own := reach.loopback_of(address):
            name, here = address.rpartition(":")[0], socket.gethostname()
            raise UserError(
                f"embedding service {address}: on {here} the name {name} leads to {own}, which is {here} itself, and "
                "other hosts have workers too. Name an address that all hosts reach, or correct /etc/hosts of "
                f"{here}, where Debian puts a host's own name at 127.0.1.1"
            )


@contextlib.contextmanager
def _leased(connect: Callable[..., ServiceClient], model_dir: str | os.PathLike) -> Iterator[ServiceClient]:
    """Yields a client that writes under a lease that all workers share. A collective."""
    keep_freed_memory(_KEPT_BYTES)
    lease, client = None, None
    with contextlib.ExitStack() as stack:
        if distributed.is_chief():
            lease = Owner.new(model_dir, Placement.of_this_process().job)
            client = stack.enter_context(contextlib.closing(connect(lease=lease)))
            stack.callback(client.release)  # Also after an error, so that a resumed training need not wait.
        values = distributed.broadcast_object(lease and dataclasses.asdict(lease), "embedding_service_lease")
        if client is None:
            client = stack.enter_context(contextlib.closing(connect(lease=Owner(**values))))
        yield client
        # Other ranks may still be using the service that rank 0 is about to release or stop.
        distributed.barrier("embedding_service_close")
