"""Memory that the workers of each host share."""

import contextlib
import json
import socket

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.ranks import distributed


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
    """-> the `address` that the first rank of this host gave. A collective."""
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
