"""Sums over the workers of one host, through memory that they share."""

import contextlib
import mmap
import os
import socket
import struct
import uuid

import numpy as np

from ctr_trainer.messages.errors import UserError

_INSTEAD = "use --dense_exchange=horovod"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


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

    def __init__(self, rank, size, length, dtype, agree, meet):
        """Maps the memory and connects the ranks. A collective.

        Args:
          rank: rank of this process.
          size: number of ranks.
          length, dtype: length and dtype of the vectors.
          agree: f(value) -> the value of rank 0, on every rank.
          meet: f(), returns when every rank has called it.

        Raises:
          UserError: this system has no such memory, or another rank cannot be reached.
        """
        self._rank, self._size = rank, size
        self._chunk = slice(rank * length // size, (rank + 1) * length // size)
        dtype = np.dtype(dtype)
        peers = _Peers(rank, size, agree(uuid.uuid4().hex), meet)
        shared = np.frombuffer(peers.share_memory((size + 1) * length * dtype.itemsize), dtype)
        self._vectors = shared[: size * length].reshape(size, length)
        self._sums = shared[size * length :]
        self._peers = peers

    def __call__(self, vector):
        """Vector [length] -> [length], the sum of all ranks' vectors. A collective.

        Raises:
          ConnectionError: a rank has ended; the message names it.
        """
        self._vectors[self._rank] = vector
        self._peers.wait()
        sums = self._sums[self._chunk]
        np.add(self._vectors[0, self._chunk], self._vectors[1, self._chunk], out=sums)
        for other in self._vectors[2:]:
            sums += other[self._chunk]
        self._peers.wait()
        return self._sums.copy()


class _Peers:
    """The connections to the other ranks of this host."""

    def __init__(self, rank, size, name, meet):
        self._rank = rank
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_address(name, rank))
            listener.listen(size)
            meet()  # Now all ranks listen.
            self._by_rank = {other: self._connect(_address(name, other)) for other in range(rank)}
            for _ in range(rank + 1, size):
                peer = self._accept(listener)
                self._by_rank[_number(peer)] = peer

    def wait(self):
        """Returns when every rank has called it as often as this one."""
        for other, peer in self._by_rank.items():
            with self._expected(other):
                peer.sendall(b"\0")
        for other, peer in self._by_rank.items():
            with self._expected(other):
                if not peer.recv(1):
                    raise ConnectionResetError

    @contextlib.contextmanager
    def _expected(self, other):
        try:
            yield
        except ConnectionError:
            raise ConnectionError(
                f"rank {other} has ended, and rank {self._rank} waits for its part of a sum"
            ) from None

    def share_memory(self, size):
        """-> `mmap.mmap` of rank 0's memory, on every rank."""
        if self._rank == 0:
            if not hasattr(os, "memfd_create"):
                raise UserError("this system has no memory that processes share by memfd_create(2): " + _INSTEAD)
            file = os.memfd_create("ctr_trainer.ranks.host_sum")
            os.ftruncate(file, size)
            for peer in self._by_rank.values():
                socket.send_fds(peer, [b"\0"], [file])
        else:
            _, (file,), _, _ = socket.recv_fds(self._by_rank[0], 1, 1)
        try:
            return mmap.mmap(file, size)
        finally:
            os.close(file)

    def _connect(self, address):
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(address)
        except OSError as error:
            raise UserError(
                f"rank {self._rank} cannot reach another one of its host ({error.strerror}): {_INSTEAD}"
            ) from None
        peer.sendall(struct.pack("i", self._rank))
        return peer

    def _accept(self, listener):
        while True:
            peer, _ = listener.accept()
            _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if user == os.getuid():
                return peer
            peer.close()  # Whoever reads /proc/net/unix can connect.


def _address(name, rank):
    return f"\0ctr_trainer.{name}.{rank}"


def _number(peer):
    return struct.unpack("i", peer.recv(4, socket.MSG_WAITALL))[0]
