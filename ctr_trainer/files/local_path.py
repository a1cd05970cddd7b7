"""Paths on a local disk, or on what the operating system shows as one."""

import contextlib
import glob
import os
import pathlib
import shutil

from ctr_trainer.files import durable_file, lease
from ctr_trainer.files.durable_file import DirectFile
from ctr_trainer.messages.errors import UserError


class LocalPath(type(pathlib.Path())):
    """A `Path` on a local disk. Large inputs are mapped into memory; outputs are written by `durable_file`."""

    def absolute(self):
        return LocalPath(os.path.abspath(self))  # Without `..`, which pathlib keeps.

    def is_relative_to(self, other):
        return super().is_relative_to(str(other))  # Of a URL it never is.

    def matches(self):
        return [LocalPath(found) for found in sorted(glob.glob(str(self)))]

    def files(self):
        return [name for name in self.entries() if (self / name).is_file()]

    def entries(self):
        found = []
        for parent, directories, files in os.walk(self):
            links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
            found += [os.path.relpath(os.path.join(parent, name), self) for name in (*files, *links)]
        return sorted(found, key=lambda name: name.split(os.sep))

    def size(self):
        return self.stat().st_size

    def stamp(self):
        stat = self.stat()
        return stat.st_size, stat.st_mtime_ns

    def open_input(self):
        import pyarrow as pa

        return pa.memory_map(str(self))

    def blocks(self, size):
        with open(self, "rb") as file:
            while block := file.read(size):
                yield block

    def open_stream(self):
        import pyarrow as pa

        return pa.input_stream(str(self))

    def open_parquet(self, **options):
        import pyarrow.parquet as pq

        return pq.ParquetFile(self, memory_map=True, page_checksum_verification=True, **options)

    @contextlib.contextmanager
    def writing(self, direct=False):
        with durable_file.replacing(self) as draft, DirectFile(draft) if direct else open(draft, "xb") as file:
            yield file

    def write_text(self, text):
        durable_file.write_text(self, text)

    def write_json(self, values, indent=1):
        durable_file.write_json(self, values, indent)

    def read_json(self, cure):
        return durable_file.read_json(self, cure)

    def append(self, text):
        with open(self, "a", encoding="utf-8") as file:
            new = file.tell() == 0
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            durable_file.fsync_path(self.parent)

    @property
    def lock_name(self):
        return self.name

    def lock(self):
        return lease.lock(self)

    def hold(self, refusal):
        return lease.hold(self, refusal)

    def copy_from(self, source):
        try:
            with open(source, "rb") as original, open(self, "wb") as copy:
                shutil.copyfileobj(original, copy, 1 << 22)
                copy.flush()
                os.fsync(copy.fileno())
        except OSError as error:
            raise UserError(f"{self}: cannot be made from {source}: {error.strerror}") from None

    def share(self, source):
        try:
            os.link(source, self)
        except OSError:
            self.copy_from(source)  # A file system without hard links.

    def sync(self):
        durable_file.fsync_path(self)

    def move_to(self, target, seal):
        os.rename(self, target)

    def remove_all(self):
        shutil.rmtree(self, ignore_errors=True)

    @contextlib.contextmanager
    def filled_locally(self):
        yield self

    @contextlib.contextmanager
    def local_files(self, names):
        yield self

    def upload(self, local):
        self.copy_from(local)

    @contextlib.contextmanager
    def local_file(self):
        yield self
