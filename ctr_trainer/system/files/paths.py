"""Converts a user's text to a path, and implements paths in the stores of `pyarrow.fs`: S3, Google Cloud, HDFS."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import posixpath
import re
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ctr_trainer.system.files.lease import FileLease, Lease, StorePlace
from ctr_trainer.system.files.local_path import PARQUET, JsonFile, LocalPath
from ctr_trainer.system.files.store_url import PureStorePath, Root, advice, is_url, opened
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import UserError, reason

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

Advanced: TypeAlias = Callable[[str], object]  # Called with a text as long work progresses.
_PATTERN = re.compile(r"[*?\[]")
_STREAM_BYTES = 8 << 20  # Number of bytes per request when reading a stream.
_LOCAL = "file://"
MOST_COPIED = 5_000_000_000  # Bytes of the largest object that S3 copies in one request.


class StorePath(JsonFile, PureStorePath):
    """A path in a store: an object with this name, and all objects whose names begin with this name and a `/`.

    A store cannot rename, lock or append to an object. Other clients see an object only after it was written
    completely.

    Args:
      key: path below the root, without a `/` at its ends.
      kind: `File` or `Directory` if a listing of the store reported this kind, which saves a request; None if the path
        was not listed.
    """

    def __init__(self, root: Root, key: str, kind: str | None = None) -> None:
        super().__init__(root, key)
        self._kind = kind

    def exists(self) -> bool:
        return self._type() != "NotFound"

    def is_file(self) -> bool:
        return self._type() == "File"

    def is_symlink(self) -> bool:
        return False

    def is_dir(self) -> bool:
        return self._type() == "Directory"

    def iterdir(self) -> list[StorePath]:
        found = ((posixpath.basename(info.path), info.type.name) for info in self._listed(recursive=False))
        return [StorePath(self._root, (self / name)._key, kind) for name, kind in sorted(found)]

    def glob(self, pattern: str) -> list[StorePath]:
        return (self / pattern).matches()

    def matches(self) -> list[Any]:
        found = [StorePath(self._root, "")]
        for part in self._key.split("/"):
            if not _PATTERN.search(part):
                found = [path / part for path in found]
                continue
            found = [
                path
                for directory in found
                for path in directory.iterdir()
                if fnmatch.fnmatchcase(path.name, part) and (part.startswith(".") or not path.name.startswith("."))
            ]
        return sorted(path for path in found if path.exists())

    def files(self) -> list[str]:
        path = self._opened()[1]
        names = [posixpath.relpath(info.path, path) for info in self._listed(recursive=True) if info.is_file]
        return sorted(names, key=lambda name: name.split("/"))

    entries = files

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing, because a store has no directories."""

    rmdir = mkdir

    def unlink(self, missing_ok: bool = False) -> None:
        filesystem, path = self._opened()
        with self._asking("removed"):
            try:
                filesystem.delete_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def size(self) -> int:
        return self.stamp()[0]

    def stamp(self) -> tuple[int, int]:
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", str(self))
        return info.size, info.mtime_ns

    def read_bytes(self) -> bytes:
        return b"".join(self.blocks(_STREAM_BYTES))

    def open_input(self) -> pa.NativeFile:
        filesystem, path = self._opened()
        with self._asking("read"):
            return filesystem.open_input_file(path)

    def blocks(self, size: int) -> Iterator[bytes]:
        with self.open_input() as file, self._asking("read"):
            while block := file.read(size):
                yield block

    def open_stream(self) -> pa.NativeFile:
        filesystem, path = self._opened()
        with self._asking("read"):
            return filesystem.open_input_stream(path, buffer_size=_STREAM_BYTES)

    def open_parquet(self, **options: Any) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        # With `pre_buffer`, adjacent columns of a row group are read in one request.
        return pq.ParquetFile(self.open_input(), pre_buffer=True, **PARQUET, **options)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Any]:
        filesystem, path = self._opened()
        with self._asking("written"):
            file = filesystem.open_output_stream(path, compression=None)
        try:
            yield file
            with self._asking("written"):
                file.close()
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()  # pyarrow cannot discard the bytes that were written so far.
            with contextlib.suppress(OSError, UserError):
                self.unlink(missing_ok=True)
            raise

    def write_text(self, text: str) -> None:
        filesystem, path = self._opened()
        with self._asking("written"), filesystem.open_output_stream(path, compression=None) as file:
            file.write(text.encode())

    def append(self, text: str) -> None:
        before = self.read_bytes().decode() if self.is_file() else ""
        self.write_text(before + text)

    def hold(self, refusal: Callable[[str], str]) -> Lease:
        return Lease(StorePlace(self, refusal))

    def copy_from(self, source: Path, advanced: Advanced = lambda text: None) -> None:
        filesystem, path = self._opened()
        with self._asking(f"made from {source}"):
            if isinstance(source, StorePath) and source._root == self._root and source.size() <= MOST_COPIED:
                filesystem.copy_file(source._opened()[1], path)
                return
        with self.writing() as file:
            for block in source.blocks(_STREAM_BYTES):
                with self._asking("written"):
                    file.write(block)
                advanced(f"copying {source}")

    share = copy_from

    def sync(self) -> None:
        """Does nothing, because all written bytes are already in the store."""

    def move_to(self, target: Any, seal: str, advanced: Advanced = lambda text: None) -> None:
        names = sorted(self.files(), key=lambda name: name == seal)
        for name in names:
            (target / name).copy_from(self / name, advanced)
            advanced(f"moving {self}")
        for name in reversed(names):
            (self / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        for name in self.files():
            (self / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def filled_locally(self) -> Iterator[LocalPath]:
        with temporary_directory() as directory:
            local = LocalPath(directory)
            yield local
            for name in local.files():
                (self / name).copy_from(local / name)

    @contextlib.contextmanager
    def local_files(self, names: Iterable[str]) -> Iterator[LocalPath]:
        with temporary_directory() as directory:
            for name in names:
                LocalPath(directory, name).parent.mkdir(parents=True, exist_ok=True)
                LocalPath(directory, name).copy_from(self / name)
            yield LocalPath(directory)

    @contextlib.contextmanager
    def local_file(self) -> Iterator[LocalPath]:
        with self.parent.local_files([self.name]) as directory:
            yield LocalPath(directory, self.name)

    def _opened(self) -> tuple[fs.FileSystem, str]:
        """Returns (file system, path in this file system)."""
        filesystem, base = opened(self._root)
        return filesystem, f"{base}/{self._key}" if self._key else base

    def _info(self) -> fs.FileInfo:
        filesystem, path = self._opened()
        with self._asking("looked at"):
            return filesystem.get_file_info(path)

    def _type(self) -> str:
        return self._kind or self._info().type.name

    def _listed(self, recursive: bool) -> list[fs.FileInfo]:
        """Returns the `pyarrow.fs.FileInfo` of each path below this path."""
        from pyarrow import fs

        filesystem, path = self._opened()
        with self._asking("listed"):
            return filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=recursive))

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Replaces an error of the store with a UserError; `what` is the past participle of the action, as `read`."""
        try:
            yield
        except FileNotFoundError:
            raise UserError(f"{self}: cannot be {what}: there is no such file") from None
        except OSError as error:
            raise UserError(f"{self}: cannot be {what}: {reason(error)}; {advice(self._root)}") from None


Path = LocalPath | StorePath  # For the methods, see `LocalPath`.
PathLease: TypeAlias = FileLease | Lease  # A lease of a path, until `close` or until the process ends.
AnyPath: TypeAlias = str | os.PathLike | Path  # A path or URL that a user may specify; see `path_of`.


def bytes_and_crc32(path: Path, advanced: Advanced = lambda text: None) -> tuple[int, int]:
    """Returns (number of bytes, CRC-32) of a file, in one pass. Calls `advanced` with a text after each block."""
    size = crc32 = 0
    for block in path.blocks(_STREAM_BYTES):
        crc32, size = zlib.crc32(block, crc32), size + len(block)
        advanced(f"reading {path}")
    return size, crc32


def check_below(names: Iterable[str]) -> None:
    """Raises ValueError unless names from a manifest, which anybody may have written, stay below its directory."""
    for name in names:
        if is_url(name) or name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"the file {name!r} is outside of its directory")


def path_of(named: Any) -> Path:
    """Converts a path or URL, such as `data/day_1.parquet`, `s3://bucket/logs` or `file:///data`, to a path object.

    A store is opened, and an unusable URL is reported, when the path is first used.
    """
    text = str(named)
    if text.startswith(_LOCAL):
        return LocalPath(urllib.parse.unquote(text.removeprefix(_LOCAL)))
    return StorePath.of(text) if is_url(text) else LocalPath(text)


def is_local(named: Any) -> bool:
    """Whether a path or URL is on the local disk, where any program can write."""
    return not is_url(str(named)) or str(named).startswith(_LOCAL)
