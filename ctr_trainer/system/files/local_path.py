"""Paths on a local disk, or on what the operating system shows as one."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from ctr_trainer.system.files import durable_file, lease
from ctr_trainer.system.files.durable_file import DirectFile
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class LocalPath(pathlib.PosixPath):
    """A path on a local disk. Large inputs are mapped into memory; outputs are written by `durable_file`.

    A `StorePath` has the same methods, with the same meaning, and those of `pathlib.Path` that the package uses. A
    store has no directories: there `mkdir` and `rmdir` do nothing, and a directory is what has files below it. `str`
    gives the text that `path_of` takes.
    """

    def absolute(self) -> LocalPath:
        return LocalPath(os.path.abspath(self))  # Without `..`, which pathlib keeps.

    def is_relative_to(self, other: Any) -> bool:  # type: ignore[override]  # As `StorePath` has it.
        return super().is_relative_to(str(other))  # Never of a URL.

    def matches(self) -> list[Any]:
        """Returns the paths that match this one as a pattern, sorted; `*`, `?` and `[...]` do not match a `/`."""
        return [LocalPath(found) for found in sorted(glob.glob(str(self)))]

    def files(self) -> list[str]:
        """Returns the names of the files below this directory, relative to it, sorted by their parts.

        It does not follow a link to a directory.
        """
        return [name for name in self.entries() if (self / name).is_file()]

    def entries(self) -> list[str]:
        """Returns the same names as `files`, and links that lead to directories or nowhere."""
        found = []
        for parent, directories, files in os.walk(self):
            links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
            found += [os.path.relpath(os.path.join(parent, name), self) for name in (*files, *links)]
        return sorted(found, key=lambda name: name.split(os.sep))

    def size(self) -> int:
        """Returns the number of bytes of a file."""
        return self.stat().st_size

    def stamp(self) -> tuple[int, int]:
        """Returns (number of bytes, time of the last change in ns) of a file: when the file changes, the stamp does."""
        stat = self.stat()
        return stat.st_size, stat.st_mtime_ns

    def open_input(self) -> pa.NativeFile:
        """Opens a file for reading at any place: a memory map, or a file that asks a store for ranges."""
        import pyarrow as pa

        return pa.memory_map(str(self))

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yields the file's bytes, `size` at a time; what was read does not stay in memory."""
        with open(self, "rb") as file:
            while block := file.read(size):
                yield block

    def open_stream(self) -> pa.NativeFile:
        """Opens a file for reading from the beginning; .gz, .bz2 and .zst are decompressed."""
        import pyarrow as pa

        return pa.input_stream(str(self))

    def open_parquet(self, **options: Any) -> pq.ParquetFile:
        """Opens a Parquet file; `options` are further options of `pq.ParquetFile`."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self, memory_map=True, page_checksum_verification=True, **options)

    @contextlib.contextmanager
    def writing(self, direct: bool = False) -> Iterator[Any]:
        """Gives a binary file within the block, whose bytes become this file's at the block's end.

        On a local disk see `durable_file.replacing`. In a store the file exists once the block has ended, and the
        previous file stays until then; if the block raises, there is no file.

        Args:
          direct: whether a local file is a `DirectFile`: for many bytes that are not read soon.
        """
        with durable_file.replacing(self) as draft, DirectFile(draft) if direct else open(draft, "xb") as file:
            yield file

    def write_text(self, text: str) -> None:  # type: ignore[override]  # As `StorePath` has it.
        """Makes this a file of the text, whole or not at all. Makes its directory."""
        durable_file.write_text(self, text)

    def write_json(self, values: Any, indent: int | None = 1) -> None:
        """Writes values as JSON, whole or not at all."""
        durable_file.write_json(self, values, indent)

    def read_json(self, cure: str) -> dict[str, Any]:
        """Reads a JSON object; see `durable_file.read_json`."""
        return durable_file.read_json(self, cure)

    def append(self, text: str) -> None:
        """Adds a text at the end of a file; it is on the disk, or in the store, when this returns."""
        with open(self, "a", encoding="utf-8") as file:
            new = file.tell() == 0
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            durable_file.fsync_path(self.parent)

    @property
    def lock_name(self) -> str:
        """Name of the file that `lock` locks."""
        return self.name

    def lock(self) -> TextIO:
        """Locks a file for this process, until `close` of the result. Makes the file if there is none.

        Raises:
          BlockingIOError: another process has the lock.
        """
        return lease.lock(self)

    def hold(self, refusal: Callable[[str], str]) -> lease.FileLease:
        """Takes the lease that this file is. See `lease.FileLease` for `refusal`.

        Raises:
          UserError: another process has the lease.
        """
        return lease.FileLease(self, refusal)

    def copy_from(self, source: Any) -> None:
        """Makes this file one with the bytes of `source`, a path of the same kind."""
        try:
            with open(source, "rb") as original, open(self, "wb") as copy:
                shutil.copyfileobj(original, copy, 1 << 22)
                copy.flush()
                os.fsync(copy.fileno())
        except OSError as error:
            raise UserError(f"{self}: cannot be made from {source}: {error.strerror}") from None

    def share(self, source: Any) -> None:
        """Does what `copy_from` does, without a copy of the bytes if the disk can give one file two names."""
        try:
            os.link(source, self)
        except OSError:
            self.copy_from(source)  # A file system without hard links.

    def sync(self) -> None:
        """Waits until a file's bytes, or a directory's list of files, are on the disk."""
        durable_file.fsync_path(self)

    def move_to(self, target: Any, seal: str) -> None:
        """Renames this directory to `target`, a path of the same kind that does not exist.

        Args:
          seal: name of the file that says that the directory is whole: it arrives last and leaves first.
        """
        os.rename(self, target)

    def remove_all(self) -> None:
        """Removes a directory, if there is one, with all files below it."""
        shutil.rmtree(self, ignore_errors=True)

    @contextlib.contextmanager
    def filled_locally(self) -> Iterator[pathlib.Path]:
        """Gives a local directory within the block; at its end, the files made there are in this directory."""
        yield self

    @contextlib.contextmanager
    def local_files(self, names: Iterable[str]) -> Iterator[pathlib.Path]:
        """Gives a local directory within the block that has these files of this directory."""
        yield self

    def upload(self, local: str | pathlib.Path) -> None:
        """Makes this file one with the bytes of a local file."""
        self.copy_from(local)

    @contextlib.contextmanager
    def local_file(self) -> Iterator[pathlib.Path]:
        """Gives the path of a local file with the bytes of this one within the block."""
        yield self
