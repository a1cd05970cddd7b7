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
    """A `Path` on a local disk. Large inputs are mapped into memory; outputs are written by `durable_file`."""

    def absolute(self) -> LocalPath:
        return LocalPath(os.path.abspath(self))  # Without `..`, which pathlib keeps.

    def is_relative_to(self, other: Any) -> bool:  # type: ignore[override]  # As `Path` has it.
        return super().is_relative_to(str(other))  # Never of a URL.

    def matches(self) -> list[LocalPath]:
        return [LocalPath(found) for found in sorted(glob.glob(str(self)))]

    def files(self) -> list[str]:
        return [name for name in self.entries() if (self / name).is_file()]

    def entries(self) -> list[str]:
        found = []
        for parent, directories, files in os.walk(self):
            links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
            found += [os.path.relpath(os.path.join(parent, name), self) for name in (*files, *links)]
        return sorted(found, key=lambda name: name.split(os.sep))

    def size(self) -> int:
        return self.stat().st_size

    def stamp(self) -> tuple[int, int]:
        stat = self.stat()
        return stat.st_size, stat.st_mtime_ns

    def open_input(self) -> pa.NativeFile:
        import pyarrow as pa

        return pa.memory_map(str(self))

    def blocks(self, size: int) -> Iterator[bytes]:
        with open(self, "rb") as file:
            while block := file.read(size):
                yield block

    def open_stream(self) -> pa.NativeFile:
        import pyarrow as pa

        return pa.input_stream(str(self))

    def open_parquet(self, **options: Any) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self, memory_map=True, page_checksum_verification=True, **options)

    @contextlib.contextmanager
    def writing(self, direct: bool = False) -> Iterator[Any]:
        with durable_file.replacing(self) as draft, DirectFile(draft) if direct else open(draft, "xb") as file:
            yield file

    def write_text(self, text: str) -> None:  # type: ignore[override]  # As `Path` has it.
        durable_file.write_text(self, text)

    def write_json(self, values: Any, indent: int | None = 1) -> None:
        durable_file.write_json(self, values, indent)

    def read_json(self, cure: str) -> dict[str, Any]:
        return durable_file.read_json(self, cure)

    def append(self, text: str) -> None:
        with open(self, "a", encoding="utf-8") as file:
            new = file.tell() == 0
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            durable_file.fsync_path(self.parent)

    @property
    def lock_name(self) -> str:
        return self.name

    def lock(self) -> TextIO:
        return lease.lock(self)

    def hold(self, refusal: Callable[[str], str]) -> lease.FileLease:
        return lease.FileLease(self, refusal)

    def copy_from(self, source: Any) -> None:
        try:
            with open(source, "rb") as original, open(self, "wb") as copy:
                shutil.copyfileobj(original, copy, 1 << 22)
                copy.flush()
                os.fsync(copy.fileno())
        except OSError as error:
            raise UserError(f"{self}: cannot be made from {source}: {error.strerror}") from None

    def share(self, source: Any) -> None:
        try:
            os.link(source, self)
        except OSError:
            self.copy_from(source)  # A file system without hard links.

    def sync(self) -> None:
        durable_file.fsync_path(self)

    def move_to(self, target: Any, seal: str) -> None:
        os.rename(self, target)

    def remove_all(self) -> None:
        shutil.rmtree(self, ignore_errors=True)

    @contextlib.contextmanager
    def filled_locally(self) -> Iterator[pathlib.Path]:
        yield self

    @contextlib.contextmanager
    def local_files(self, names: Iterable[str]) -> Iterator[pathlib.Path]:
        yield self

    def upload(self, local: str | pathlib.Path) -> None:
        self.copy_from(local)

    @contextlib.contextmanager
    def local_file(self) -> Iterator[pathlib.Path]:
        yield self
