"""Memory that the workers of one host share."""

import contextlib
import functools
import mmap
import os
import pathlib
import uuid

import numpy as np
import numpy.typing as npt

from ctr_trainer.embedding.memory.growable_array import GrowableArray, RowLock, TableMemory
from ctr_trainer.system.messages.errors import UserError

_PREFIX = "ctr_trainer"


class SharedMemory(TableMemory):
    """Memory for arrays that several processes of one host use. One process, the owner, makes it; the others open it.

    Each array is an anonymous file in memory (memfd_create(2)). The other processes find it by name among the owner's
    open files. So nothing is written to disk, the limit of /dev/shm does not apply, and the kernel frees the memory
    when the last process ends, even if it is killed.

    The owner must make an array before the others open it under the same name.

    Caveat: Linux only. All processes must belong to one user and see each other in /proc.

    Attributes:
      address: the string with which the other processes open the memory.
      is_own: whether this process is the owner.
    """

    free: int = getattr(mmap, "MADV_REMOVE", 9)

    def __init__(self, address: str | None = None, prefix: str = "") -> None:
        """Opens the owner's memory at `address`; None makes this process the owner."""
        self.is_own = address is None
        self.address = address or f"{os.getpid()}/{uuid.uuid4().hex[:12]}"
        self._prefix = prefix
        # Shared by the views of this memory that `under` returns.
        self._files: list[int] = []
        self._mapped: list[mmap.mmap] = []

    def under(self, prefix: str) -> "SharedMemory":
        memory = SharedMemory(self.address, f"{self._prefix}{prefix}.")
        memory.is_own, memory._files, memory._mapped = self.is_own, self._files, self._mapped
        return memory

    def remove(self) -> None:
        """Frees the memory at once if this is the owner. All processes must be done, because they would read zeros."""
        for pages in self._mapped if self.is_own else ():
            pages.madvise(self.free)

    def close(self) -> None:
        """Closes all arrays in this process. The memory of arrays that other processes have opened stays."""
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._mapped.clear()

    def array(
        self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = (), most_rows: int | None = None
    ) -> GrowableArray:
        return GrowableArray(dtype, shape, most_rows, functools.partial(self._pages, name))

    def counts(self, name: str, size: int) -> np.ndarray:
        return GrowableArray(np.int64, (), size, functools.partial(self._pages, f"{name}.counts")).array

    def lock(self, name: str) -> RowLock:
        return RowLock(self._open(f"{name}.lock"))

    def _pages(self, name: str, size: int) -> mmap.mmap:
        file = self._open(name)
        try:
            if self.is_own:
                os.ftruncate(file, size)
            self._mapped.append(mmap.mmap(file, os.fstat(file).st_size))
            return self._mapped[-1]
        except OSError as error:
            raise UserError(
                f"{size >> 20} MiB of address space for the shared embedding rows: {error.strerror}; raise the "
                "limit (ulimit -v), or use embedding_service=auto with row_copies=worker, which needs none of it"
            ) from None

    def _open(self, name: str) -> int:
        pid, nonce = self.address.split("/")
        name = f"{_PREFIX}.{nonce}.{self._prefix}{name}"
        file = os.memfd_create(name) if self.is_own else self._find(pid, name)
        self._files.append(file)  # The owner keeps its files open, so that the other processes find them.
        return file

    @staticmethod
    def _find(pid: str, name: str) -> int:
        """Returns the descriptor of an open file of the owner."""
        directory = pathlib.Path(f"/proc/{pid}/fd")
        try:
            for link in directory.iterdir():
                with contextlib.suppress(FileNotFoundError):  # The owner has just closed another file.
                    if os.readlink(link).removeprefix("/memfd:").removesuffix(" (deleted)") == name:
                        return os.open(link, os.O_RDWR)
        except OSError as error:
            raise UserError(_unreachable(pid, f"{error.strerror} ({error.filename})")) from None
        raise UserError(_unreachable(pid, f"it has no {name}"))


def _unreachable(pid: str, why: str) -> str:
    return (
        f"this worker cannot open the memory of the worker with process id {pid}: {why}. Workers that share "
        "embedding rows must run on one host, as one user and in one container: use embedding_service=auto with "
        "row_copies=worker"
    )
