"""The store that a job's embedding rows live in."""

import contextlib
import os

from ctr_trainer import distributed
from ctr_trainer.embedding.client import ServiceClient
from ctr_trainer.embedding.guard import Guard
from ctr_trainer.embedding.local_store import LocalStore
from ctr_trainer.embedding.process import Watch, local_services
from ctr_trainer.embedding.security import ClientSecurity
from ctr_trainer.embedding.shared_memory import SharedMemory
from ctr_trainer.embedding.shared_table import SharedTables
from ctr_trainer.errors import UserError


@contextlib.contextmanager
def open_store(config, model_dir, read_only=False):
    """Gives the store that `config.service` names; local services, or shared memory, that it made end with the block.

    A collective where there are several workers.

    Raises:
      UserError: `auto` or `shared` was asked for workers on several hosts, or the service does not start.
    """
    if config.service not in ("auto", "shared"):
        with contextlib.closing(_client(config, config.service.split(","), read_only)) as client:
            yield client
        return
    if distributed.size() == 1:
        yield LocalStore()
        return
    if distributed.local_size() != distributed.size():
        raise UserError(
            f"--embedding_service={config.service} is for workers on one host; start `python -m ctr_trainer serve` on "
            "a host that all of them reach and name it: --embedding_service=host:port"
        )
    if config.service == "shared":
        memory = SharedMemory() if distributed.is_chief() else None
        address = distributed.broadcast_object(memory.address if memory else None, "shared_memory_address")
        yield LocalStore(SharedTables(memory or SharedMemory(address)))
        return
    with contextlib.ExitStack() as stack:
        started, watches = None, []
        if distributed.is_chief():
            os.makedirs(model_dir, exist_ok=True)
            watches = stack.enter_context(
                local_services(config.service_shards, model_dir, config.timeout, distributed.all_cores())
            )
            started = [(service.address, service.pid, service.log_file) for service in watches]
        started = distributed.broadcast_object(started, "embedding_services")
        if not watches:
            watches = [stack.enter_context(contextlib.closing(Watch(pid, log))) for _, pid, log in started]
        ended = [watch.ended for watch in watches]
        client = _client(config, [address for address, _, _ in started], read_only, ended)
        yield stack.enter_context(contextlib.closing(client))
        # The others may still be talking to the service that rank 0 is about to stop.
        distributed.barrier("embedding_service_close")


def _client(config, addresses, read_only, ended=()):
    """-> a client, guarded where the workers go back to the last checkpoint by themselves."""
    own = config.service == "auto"  # A service that we started on loopback asks for nothing.
    security = ClientSecurity() if own else ClientSecurity.read(*config.security_files)
    client = ServiceClient(addresses, config.timeout, security, read_only, ended)
    return Guard(client) if config.service_restarts and not read_only else client
