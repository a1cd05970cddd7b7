"""What the package asks of a path, on a local disk or in a store."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # pyarrow takes a second to import, which the launcher has no use for.
    import pyarrow as pa
    import pyarrow.parquet as pq


class Closeable(Protocol):
    """What holds a lock until it is closed."""

    def close(self) -> None:
        """Unlocks."""


class PathLease(Closeable, Protocol):
    """What this process holds alone, until `close` or until the process ends."""

    def check(self) -> None:
        """Raises UserError if this process has lost the lease."""


class Path(Protocol):
    """A path of a file or a directory; `paths.path_of` makes one.

    The names that `pathlib.Path` has, too, mean the same here. A store has no directories: there `mkdir` and `rmdir` do
    nothing, and a directory is what has files below it. `str` gives the text that `path_of` takes.
    """

    # fmt: off
    @property
    def name(self) -> str: ...
    @property
    def stem(self) -> str: ...
    @property
    def suffix(self) -> str: ...
    @property
    def parent(self) -> Path: ...
    @property
    def parents(self) -> Sequence[Path]: ...
    def __truediv__(self, name: Any) -> Path: ...
    def __lt__(self, other: Any) -> bool: ...
    def with_name(self, name: str) -> Path: ...
    def exists(self) -> bool: ...
    def is_file(self) -> bool: ...
    def is_dir(self) -> bool: ...
    def is_symlink(self) -> bool: ...
    def iterdir(self) -> Iterable[Path]: ...
    def glob(self, pattern: str) -> Iterable[Path]: ...
    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None: ...
    def unlink(self, missing_ok: bool = False) -> None: ...
    def rmdir(self) -> None: ...
    def read_bytes(self) -> bytes: ...
    def resolve(self) -> Path: ...
    def absolute(self) -> Path: ...
    def is_relative_to(self, other: Any) -> bool: ...
    def match(self, pattern: str) -> bool: ...
    # fmt: on

    @property
    def lock_name(self) -> str:
        """Name of the file that `lock` locks."""

    def matches(self) -> list[Any]:
        """Returns the paths that match this one as a pattern, sorted; `*`, `?` and `[...]` do not match a `/`."""

    def files(self) -> list[str]:
        """Returns the names of the files below this directory, relative to it, sorted by their parts.

        It does not follow a link to a directory.
        """

    def entries(self) -> list[str]:
        """Returns the same names as `files`, and links that lead to directories or nowhere."""

    def size(self) -> int:
        """Returns the number of bytes of a file."""

    def stamp(self) -> tuple[int, int]:
        """Returns (number of bytes, time of the last change in ns) of a file: when the file changes, the stamp does."""

    def open_input(self) -> pa.NativeFile:
        """Opens a file for reading at any place: a memory map, or a file that asks a store for ranges."""

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yields the file's bytes, `size` at a time; what was read does not stay in memory."""

    def open_stream(self) -> pa.NativeFile:
        """Opens a file for reading from the beginning; .gz, .bz2 and .zst are decompressed."""

    def open_parquet(self, **options: Any) -> pq.ParquetFile:
        """Opens a Parquet file; `options` are further options of `pq.ParquetFile`."""

    def writing(self, direct: bool = False) -> contextlib.AbstractContextManager[Any]:
        """Gives a binary file within the block, whose bytes become this file's at the block's end.

        On a local disk see `durable_file.replacing`. In a store the file exists once the block has ended, and the
        previous file stays until then; if the block raises, there is no file.

        Args:
          direct: whether a local file is a `DirectFile`: for many bytes that are not read soon.
        """

    def write_text(self, text: str) -> Any:
        """Makes this a file of the text, whole or not at all. Makes its directory."""

    def write_json(self, values: Any, indent: int | None = 1) -> None:
        """Writes values as JSON, whole or not at all."""

    def read_json(self, cure: str) -> dict[str, Any]:
        """Reads a JSON object; see `durable_file.read_json`."""

    def append(self, text: str) -> None:
        """Adds a text at the end of a file; it is on the disk, or in the store, when this returns."""

    def lock(self) -> Closeable:
        """Locks a file for this process, until `close` of the result. Makes the file if there is none.

        Raises:
          BlockingIOError: another process has the lock.
        """

    def hold(self, refusal: Callable[[str], str]) -> PathLease:
        """Takes the lease that this file is. See `lease.FileLease` for `refusal`.

        Raises:
          UserError: another process has the lease.
        """

    def copy_from(self, source: Any) -> None:
        """Makes this file one with the bytes of `source`, a path of the same kind."""

    def share(self, source: Any) -> None:
        """Does what `copy_from` does, without a copy of the bytes if the disk can give one file two names."""

    def sync(self) -> None:
        """Waits until a file's bytes, or a directory's list of files, are on the disk."""

    def move_to(self, target: Any, seal: str) -> None:
        """Renames this directory to `target`, which does not exist.

        Args:
          target: path of the same kind.
          seal: name of the file that says that the directory is whole: it arrives last and leaves first.
        """

    def remove_all(self) -> None:
        """Removes a directory, if there is one, with all files below it."""

    def filled_locally(self) -> contextlib.AbstractContextManager[pathlib.Path]:
        """Gives a local directory within the block; at its end, the files made there are in this directory."""

    def local_files(self, names: Iterable[str]) -> contextlib.AbstractContextManager[pathlib.Path]:
        """Gives a local directory within the block that has these files of this directory."""

    def upload(self, local: str | pathlib.Path) -> None:
        """Makes this file one with the bytes of a local file."""

    def local_file(self) -> contextlib.AbstractContextManager[pathlib.Path]:
        """Gives the path of a local file with the bytes of this one within the block."""


AnyPath: TypeAlias = str | os.PathLike | Path  # What a user may name; see `paths.path_of`.
