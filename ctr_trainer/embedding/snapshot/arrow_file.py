"""Arrow files that are written whole, and whose checksum is known."""

import contextlib
import zlib

import pyarrow as pa

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError


@contextlib.contextmanager
def arrow_file(path, name, of_schema, cure="make room there", direct=False):
    """Gives the `ArrowFile` of a file that has its name, and is on the disk, once the block has ended.

    Args:
      path: its directory, which exists.
      name: its name there.
      of_schema: its pyarrow schema.
      cure: what the user can do if it cannot be written; the end of the message.
      direct: see `Path.writing`.

    Raises:
      UserError: it cannot be written; names it.
    """
    target = path_of(path) / name
    with _told(target, cure), target.writing(direct) as file:
        yield ArrowFile(file, target, of_schema, cure)


@contextlib.contextmanager
def _told(target, cure):
    """Says which file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}; {cure}") from None


class ArrowFile:
    """An Arrow file that knows its rows, its size and its CRC-32."""

    def __init__(self, file, target, of_schema, cure):
        self._file, self._target, self._schema, self._cure = file, target, of_schema, cure
        self._sink, self._rows = _ChecksumFile(file), 0
        with _told(target, cure):
            self._arrow_file = pa.PythonFile(self._sink, mode="w")
            self._writer = pa.ipc.new_file(self._arrow_file, self._schema)

    def write(self, columns):
        """Writes a batch."""
        self._rows += len(columns[0])
        with _told(self._target, self._cure):
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def finish(self):
        """-> dict of `rows`, `bytes` and `crc32`, once all is written."""
        with _told(self._target, self._cure):
            self._writer.close()
            self._arrow_file.close()
            self._file.flush()
        return dict(rows=self._rows, bytes=self._sink.bytes, crc32=self._sink.crc32)


class _ChecksumFile:
    """A file to write to that knows its size and its CRC-32."""

    closed = False

    def __init__(self, file):
        self._file = file
        self.bytes = 0
        self.crc32 = 0

    def write(self, data):
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self):
        self._file.flush()

    def close(self):
        """Left open: who opened it closes it."""
