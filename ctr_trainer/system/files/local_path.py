"""Paths on a local disk. A file is written whole or not at all, even after a kill or a power cut."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ctr_trainer.system.files.lease import FileLease
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Times of INT96 are read in microseconds: in nanoseconds, those outside of the years 1678 to 2261 overflow silently.
PARQUET: dict[str, Any] = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
_COPY_BYTES = 4 << 20
_DRAFT = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")


class JsonFile:
    """The methods of a path that write and read JSON."""

    def write_json(self: Any, values: Any, indent: int | None = 1) -> None:
        """Writes values as JSON with `write_text`."""
        self.write_text(json.dumps(values, indent=indent) + "\n")

    def read_json(self: Any, cure: str) -> dict[str, Any]:
        """Reads a JSON object.

        Raises UserError, which ends with the advice `cure`, if the file cannot be read, is cut off or has no object.
        """
        text = b""
        try:
            text = self.read_bytes()
            values = json.loads(text)
        except OSError as error:
            raise UserError(f"{self}: cannot be read: {error.strerror}; {cure}") from error
        except ValueError as error:
            why = f"is cut off or altered ({error})" if text.strip() else "is empty"
            raise UserError(f"{self}: {why}; {cure}") from error
        if not isinstance(values, dict):
            raise UserError(f"{self}: holds no JSON object; {cure}")
        return values


class LocalPath(JsonFile, pathlib.PosixPath):
    """A path on a local disk. Large inputs are mapped into memory.

    A `StorePath` has the same methods with the same meaning, and the methods of `pathlib.Path` that the package uses. A
    store has no directories: there, `mkdir` and `rmdir` do nothing, and a path is a directory if there are files below
    it. `str` returns the text that `path_of` accepts.
    """

    def absolute(self) -> LocalPath:
        return LocalPath(os.path.abspath(self))  # Without `..`, which pathlib keeps.

    def resolve(self, strict: bool = False) -> LocalPath:
        """Follows links, as pathlib does. Raises UserError if they form a loop."""
        try:
            return super().resolve(strict)
        except (OSError, RuntimeError) as error:
            raise UserError(f"{self}: its links form a loop; expected a file or a directory") from error

    def is_relative_to(self, other: Any) -> bool:  # type: ignore[override]  # Like `StorePath`.
        return super().is_relative_to(str(other))  # False for a URL.

    def matches(self) -> list[Any]:
        """Returns the sorted paths that match this path as a pattern; `*`, `?` and `[...]` do not match a `/`."""
        return [LocalPath(found) for found in sorted(glob.glob(str(self)))]

    def files(self) -> list[str]:
        """Returns the names of the files below this directory, relative to it, sorted by their parts.

        This method does not follow links to directories.
        """
        return [name for name in self.entries() if (self / name).is_file()]

    def entries(self) -> list[str]:
        """Returns the names that `files` returns, and the names of links to directories and of broken links."""
        found = []
        for parent, directories, files in os.walk(self):
            links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
            found += [os.path.relpath(os.path.join(parent, name), self) for name in (*files, *links)]
        return sorted(found, key=lambda name: name.split(os.sep))

    def size(self) -> int:
        """Returns the number of bytes of a file."""
        return self.stat().st_size

    def stamp(self) -> tuple[int, int]:
        """Returns (number of bytes, time of the last change in ns) of a file, which changes when the file changes."""
        stat = self.stat()
        return stat.st_size, stat.st_mtime_ns

    def open_input(self) -> pa.NativeFile:
        """Opens a file for reading at any position: a memory map, or a file that requests ranges from a store."""
        import pyarrow as pa

        return pa.memory_map(str(self))

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yields the file's bytes in blocks of `size`, which do not remain in memory."""
        with open(self, "rb") as file:
            while block := file.read(size):
                yield block

    def open_stream(self) -> pa.NativeFile:
        """Opens a file for sequential reading; .gz, .bz2 and .zst files are decompressed."""
        import pyarrow as pa

        return pa.input_stream(str(self))

    def open_parquet(self, **options: Any) -> pq.ParquetFile:
        """Opens a Parquet file; `options` are additional options of `pq.ParquetFile`."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self, memory_map=True, **PARQUET, **options)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Any]:
        """Yields a binary file, whose bytes become the content of this path at the end of the block.

        On a local disk, a draft in the same directory is written, and renamed at the end of the block. The bytes are on
        the disk before that, and the new name afterwards. If the block raises, the file is unchanged. In a store, the
        previous file exists until the end of the block, and then the new one; if the block raises, there is no file.

        Caveat: a killed process leaves its draft, `PATH.XXXXXXXX.tmp`. No other process uses this draft.
        """
        draft = LocalPath(f"{self}.{secrets.token_hex(4)}.tmp")  # `of_draft` expects this format.
        try:
            with open(draft, "xb") as file:
                yield file
            draft.sync()
            os.replace(draft, self)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        with contextlib.suppress(FileNotFoundError):  # The reader has read the file and removed its directory.
            self.absolute().parent.sync()

    def write_text(self, text: str) -> None:  # type: ignore[override]  # Like `StorePath`.
        """Writes a text with `writing`. Creates the directory. Raises UserError if the file cannot be written."""
        with refusing_unwritable(self):
            self.parent.mkdir(parents=True, exist_ok=True)
            with self.writing() as file:
                file.write(text.encode())

    def append(self, text: str) -> None:
        """Appends a text to the file. When this method returns, the text is on the disk or in the store."""
        with open(self, "a", encoding="utf-8") as file:
            new = file.tell() == 0
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            self.parent.sync()

    def hold(self, refusal: Callable[[str], str]) -> FileLease:
        """Takes the lease of this file until `close` of the result. For `refusal`, see `FileLease`.

        Raises InUse: another process has the lease.
        """
        return FileLease(self, refusal)

    def copy_from(self, source: Any, advanced: Callable[[str], object] = lambda text: None) -> None:
        """Copies the file `source`, a `Path` of any kind, here. Calls `advanced` with a text after each block."""
        try:
            with open(self, "wb") as copy:
                for block in source.blocks(_COPY_BYTES):
                    copy.write(block)
                    advanced(f"copying {source}")
                copy.flush()
                os.fsync(copy.fileno())
        except OSError as error:
            raise UserError(f"{self}: cannot be made from {source}: {error.strerror}") from None

    def share(self, source: Any, advanced: Callable[[str], object] = lambda text: None) -> None:
        """Like `copy_from`, but creates a hard link instead of a copy if the file system supports it."""
        if isinstance(source, LocalPath) and self.exists() and self.samefile(source):
            return
        self.unlink(missing_ok=True)  # Its other names keep its bytes.
        try:
            os.link(str(source), self)
        except OSError:
            self.copy_from(source, advanced)  # The file system does not support hard links.

    def sync(self) -> None:
        """Waits until the bytes of a file, or the entries of a directory, are on the disk."""
        handle = os.open(self, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def move_to(self, target: Any, seal: str, advanced: Callable[[str], object] = lambda text: None) -> None:
        """Renames this directory to `target`, a path of the same kind that does not exist.

        `seal`: name of the file that marks the directory as complete. It is copied last and removed first.
        `advanced` is called as in `copy_from`.
        """
        os.rename(self, target)

    def remove_all(self) -> None:
        """Removes the directory, if it exists, with all files below it."""
        shutil.rmtree(self, ignore_errors=True)

    @contextlib.contextmanager
    def filled_locally(self) -> Iterator[LocalPath]:
        """Yields a local directory. At the end of the block, the files that it contains are in this directory."""
        yield self

    @contextlib.contextmanager
    def local_files(self, names: Iterable[str]) -> Iterator[LocalPath]:
        """Yields a local directory that contains these files of this directory."""
        yield self

    @contextlib.contextmanager
    def local_file(self) -> Iterator[LocalPath]:
        """Yields the path of a local file with the content of this file."""
        yield self


@contextlib.contextmanager
def refusing_unwritable(path: Any, cure: str = "") -> Iterator[None]:
    """Replaces an OSError of the block, which writes to a path, by a UserError, which ends with the advice `cure`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}{cure and f'; {cure}'}") from error


def of_draft(name: str) -> str | None:
    """Returns the name of the file that a draft of `LocalPath.writing` is for; None if `name` is not a draft's name."""
    found = _DRAFT.fullmatch(name)
    return found and found[1]
