"""Sums over the workers of one host, through memory that they share."""

import uuid
from collections.abc import Callable

import numpy as np

from ctr_trainer.ranks.host_peers import HostPeers


class HostSum:
    """Sums vectors over the processes of one host.

    Each rank writes its vector to memory that all ranks have mapped. When all have written, each rank adds up one part
    of all vectors, in the order of the ranks, so that all ranks read the same bits. When all parts are added up, each
    rank copies the sums out. So a rank writes one vector and reads the amount of two, for any number of ranks, and the
    ranks wait for each other twice. Through Horovod's Gloo, each vector crosses the loopback device twice, and each
    step waits for two turns of Horovod's thread.

    The memory is an anonymous file (memfd_create(2)), and the ranks tell each other through abstract Unix sockets how
    far they are. So nothing is left on a disk, and if a rank ends, the ranks that wait for it notice at once.

    Caveat: Linux only, and all ranks in one network namespace. Not safe to use from several threads.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        length: int,
        dtype: type | np.dtype,
        agree: Callable[[str], str],
        meet: Callable[[], None],
        first: int = 0,
    ) -> None:
        """Maps the memory and connects the ranks. A collective.

        Args:
          rank, size: local rank of this worker, and number of workers of this host.
          length, dtype: length and dtype of the vectors.
          agree: f(value) -> the value of rank 0, on every rank.
          meet: f(), returns when every rank has called it.
          first: rank in the job of the worker whose local rank is 0.

        Raises:
          UserError: this system has no such memory, or another rank cannot be reached.
        """
        self._rank = rank
        self._chunk = slice(rank * length // size, (rank + 1) * length // size)
        dtype = np.dtype(dtype)
        peers = HostPeers(rank, size, f"{agree(uuid.uuid4().hex)}.{first}", meet, first)
        shared = np.frombuffer(peers.share_memory((size + 1) * length * dtype.itemsize), dtype)
        self._vectors = shared[: size * length].reshape(size, length)
        self._sums = shared[size * length :]
        self._peers = peers

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of all ranks' vectors [length], on every rank. A collective.

        Raises:
          ConnectionError: a rank has ended; the message names it.
        """
        self._add_up(vector)
        return self._sums.copy()

    def to_first(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of all ranks' vectors on the first rank, and `vector` itself on the others. A collective.

        Raises:
          ConnectionError: see `__call__`.
        """
        self._add_up(vector)
        return vector if self._rank else self._sums.copy()

    def from_first(self, vector: np.ndarray) -> np.ndarray:
        """Returns the vector of the first rank, on every rank; what the others pass does not count. A collective.

        Raises:
          ConnectionError: see `__call__`.
        """
        if not self._rank:
            self._sums[:] = vector
        self._peers.wait()
        return self._sums.copy() if self._rank else vector

    def _add_up(self, vector: np.ndarray) -> None:
        self._vectors[self._rank] = vector
        self._peers.wait()
        sums = self._sums[self._chunk]
        if len(self._vectors) == 1:  # This worker is alone on its host, and other hosts have several.
            sums[:] = vector
            return
        np.add(self._vectors[0, self._chunk], self._vectors[1, self._chunk], out=sums)
        for other in self._vectors[2:]:
            sums += other[self._chunk]
        self._peers.wait()
