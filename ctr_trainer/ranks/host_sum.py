"""Connects the workers of one host without Horovod: sums in shared memory, and arrays from one worker to another."""

import contextlib
import mmap
import os
import socket
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

_INSTEAD = "use dense_exchange=horovod"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class HostPeers:
    """Connections to the other workers of this host, over which they send signals of their progress, and arrays.

    The connections are abstract Unix sockets, which leave no files on a disk. If a worker ends, the workers that wait
    for it notice this immediately.

    Caveat: this class works only on Linux, with all workers in one network namespace, and is not thread-safe.

    Args:
      rank, size: local rank of this worker, and number of workers of this host. Both are also attributes.
      name: unique name of the group, the same for all its workers.
      meet: f(), a barrier of all ranks.
      first: rank in the job of the worker with local rank 0, for messages.

    Raises UserError if another worker cannot be reached. All methods raise ConnectionError, which names the worker, if
    a worker has ended.
    """

    def __init__(self, rank: int, size: int, name: str, meet: Callable[[], None], first: int = 0) -> None:
        self.rank, self.size, self._first, self._name = rank, size, first, name
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_address(name, rank))
            listener.listen(size)
            meet()  # After this, all ranks are listening.
            self._by_rank = {other: self._connect(_address(name, other)) for other in range(rank)}
            for _ in range(rank + 1, size):
                peer = self._accept(listener)
                (number,) = struct.unpack("i", peer.recv(4, socket.MSG_WAITALL))
                self._by_rank[number] = peer

    def wait(self) -> None:
        """Waits until every worker has called this method as often as this worker has."""
        self.tell()
        self.hear(self._by_rank)

    def tell(self) -> None:
        """Signals to all other workers that this worker has completed a step."""
        for other, peer in self._by_rank.items():
            with self._expected(other):
                peer.sendall(b"\0")

    def hear(self, others: Iterable[int]) -> None:
        """Waits until each of these workers, given by local rank, has signalled that it has completed a step."""
        for other in others:
            with self._expected(other):
                if not self._by_rank[other].recv(1):
                    raise ConnectionResetError

    def send(self, other: int, array: np.ndarray) -> None:
        """Sends an array to a worker, given by local rank, which must call `receive`."""
        with self._expected(other):
            self._by_rank[other].sendall(_bytes(np.array([len(array)], np.int64)))
            self._by_rank[other].sendall(_bytes(np.ascontiguousarray(array)))

    def receive(self, other: int, dtype: npt.DTypeLike, *shape: int) -> np.ndarray:
        """Returns the array [n, *shape] that a worker, given by local rank, sends."""
        with self._expected(other):
            (length,) = self._fill(other, np.empty(1, np.int64))
            return self._fill(other, np.empty((length, *shape), dtype))

    def _fill(self, other: int, array: np.ndarray) -> np.ndarray:
        missing = _bytes(array)
        while missing:
            received = self._by_rank[other].recv_into(missing)
            if not received:
                raise ConnectionResetError
            missing = missing[received:]
        return array

    @contextlib.contextmanager
    def _expected(self, other: int) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            gone, own = self._first + other, self._first + self.rank
            raise ConnectionError(f"rank {gone} has ended, and rank {own} waits for its part of a step") from None

    def share_memory(self, size: int) -> mmap.mmap:
        """Returns shared memory, which the worker with local rank 0 creates and every worker maps."""
        if self.rank == 0:
            file = os.memfd_create(f"ctr_trainer.ranks.host_sum.{self._name}")
            os.ftruncate(file, size)
            for peer in self._by_rank.values():
                socket.send_fds(peer, [b"\0"], [file])
        else:
            _, (file,), _, _ = socket.recv_fds(self._by_rank[0], 1, 1)
        try:
            return mmap.mmap(file, size)
        finally:
            os.close(file)

    def _connect(self, address: str) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(address)
        except OSError as error:
            raise UserError(
                f"local rank {self.rank} cannot reach another rank on its host ({error.strerror}): {_INSTEAD}"
            ) from None
        peer.sendall(struct.pack("i", self.rank))
        return peer

    def _accept(self, listener: socket.socket) -> socket.socket:
        while True:
            peer, _ = listener.accept()
            _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if user == os.getuid():
                return peer
            peer.close()  # Any user can find the address in /proc/net/unix and connect.


def host_peers(name: str) -> HostPeers:
    """Returns the connections of this worker to the others of its host, for the collective `name`. A collective."""
    rank, size = distributed.local_rank(), distributed.local_size()
    first = distributed.rank() - rank
    # The first rank is part of the name because two hosts may be one machine under two names.
    unique = f"{distributed.broadcast_object(uuid.uuid4().hex, name)}.{first}"
    return HostPeers(rank, size, unique, lambda: distributed.barrier(name), first)


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _address(name: str, rank: int) -> str:
    return f"\0ctr_trainer.{name}.{rank}"


class HostSum:
    """Sums vectors over the processes of one host.

    Each rank writes its vector to memory that all ranks have mapped. When all ranks have written, each rank sums one
    part of all vectors in rank order, so that all ranks read the same bits. When all parts are summed, each rank copies
    the sums. For any number of ranks, a rank writes one vector, reads the equivalent of two, and waits twice.

    The memory is an anonymous file (memfd_create(2)), which leaves nothing on a disk. The ranks synchronize through
    `HostPeers`, whose caveats apply. The constructor maps the memory, and is a collective. All methods raise
    ConnectionError, which names the rank, if a rank has ended.
    """

    def __init__(self, peers: HostPeers, length: int, dtype: type | np.dtype) -> None:
        rank, size, dtype = peers.rank, peers.size, np.dtype(dtype)
        self._peers, self._rank = peers, rank
        self._chunk = slice(rank * length // size, (rank + 1) * length // size)
        shared = np.frombuffer(peers.share_memory((size + 1) * length * dtype.itemsize), dtype)
        self._vectors = shared[: size * length].reshape(size, length)
        self._sums = shared[size * length :]

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of all ranks' vectors [length], on every rank. A collective."""
        self._add_up(vector)
        return self._sums.copy()

    def to_first(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of all ranks' vectors on the first rank, and `vector` itself on the others. A collective."""
        self._add_up(vector)
        return vector if self._rank else self._sums.copy()

    def from_first(self, vector: np.ndarray) -> np.ndarray:
        """Returns the first rank's vector on every rank; the vectors of the other ranks are ignored. A collective."""
        if not self._rank:
            self._sums[:] = vector
        self._peers.wait()
        return self._sums.copy() if self._rank else vector

    def _add_up(self, vector: np.ndarray) -> None:
        self._vectors[self._rank] = vector
        self._peers.wait()
        sums = self._sums[self._chunk]
        if len(self._vectors) == 1:  # This host has one worker, and another host has several.
            sums[:] = vector
            return
        np.add(self._vectors[0, self._chunk], self._vectors[1, self._chunk], out=sums)
        for other in self._vectors[2:]:
            sums += other[self._chunk]
        self._peers.wait()
