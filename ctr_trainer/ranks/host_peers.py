"""How the workers of one host reach each other without Horovod."""

import contextlib
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

from ctr_trainer.messages.errors import UserError

_INSTEAD = "use --dense_exchange=horovod"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class HostPeers:
    """The connections to the other workers of this host, by which they tell each other how far they are.

    They are abstract Unix sockets, so nothing is left on a disk, and if a worker ends, the workers that wait for it
    notice at once.

    Caveat: Linux only, and all workers in one network namespace. Not safe to use from several threads.

    Args:
      rank, size: local rank of this worker, and number of workers of this host.
      name: of the group, the same for all its workers, and of no other group.
      meet: f(), returns when every rank has called it.
      first: rank in the job of the worker whose local rank is 0, for messages.

    Raises:
      UserError: another worker cannot be reached.
    """

    def __init__(self, rank: int, size: int, name: str, meet: Callable[[], None], first: int = 0) -> None:
        self._rank, self._first, self._name = rank, first, name
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_address(name, rank))
            listener.listen(size)
            meet()  # Now all ranks listen.
            self._by_rank = {other: self._connect(_address(name, other)) for other in range(rank)}
            for _ in range(rank + 1, size):
                peer = self._accept(listener)
                self._by_rank[_number(peer)] = peer

    def wait(self) -> None:
        """Returns when every worker has called it as often as this one."""
        self.tell()
        self.hear(self._by_rank)

    def tell(self) -> None:
        """Tells all other workers that this one is a step further."""
        for other, peer in self._by_rank.items():
            with self._expected(other):
                peer.sendall(b"\0")

    def hear(self, others: Iterable[int]) -> None:
        """Returns when each of these workers has told once more that it is a step further.

        Args:
          others: local ranks.

        Raises:
          ConnectionError: a worker has ended; the message names it.
        """
        for other in others:
            with self._expected(other):
                if not self._by_rank[other].recv(1):
                    raise ConnectionResetError

    @contextlib.contextmanager
    def _expected(self, other: int) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            gone, own = self._first + other, self._first + self._rank
            raise ConnectionError(f"rank {gone} has ended, and rank {own} waits for its part of a step") from None

    def share_memory(self, size: int) -> mmap.mmap:
        """Returns the memory that the worker of local rank 0 makes, mapped in every worker."""
        if self._rank == 0:
            if not hasattr(os, "memfd_create"):
                raise UserError("this system has no memory that processes share by memfd_create(2): " + _INSTEAD)
            file = os.memfd_create(f"ctr_trainer.ranks.host_peers.{self._name}")
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
                f"rank {self._rank} cannot reach another one of its host ({error.strerror}): {_INSTEAD}"
            ) from None
        peer.sendall(struct.pack("i", self._rank))
        return peer

    def _accept(self, listener: socket.socket) -> socket.socket:
        while True:
            peer, _ = listener.accept()
            _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if user == os.getuid():
                return peer
            peer.close()  # Whoever reads /proc/net/unix can connect.


def _address(name: str, rank: int) -> str:
    return f"\0ctr_trainer.{name}.{rank}"


def _number(peer: socket.socket) -> int:
    return struct.unpack("i", peer.recv(4, socket.MSG_WAITALL))[0]
