"""Writes the files of a snapshot; see `snapshot` for what they are."""

import contextlib
import os
import pathlib
import zlib

import numpy as np
import pyarrow as pa

from ctr_trainer.divergence import diverged
from ctr_trainer.durable_file import fsync_path
from ctr_trainer.embedding.row_kernels import first_not_finite
from ctr_trainer.embedding.snapshot import key_array, row_array, schema
from ctr_trainer.errors import UserError


def write(path, capture, lock, identity, since, step, shard=0, shards=1):
    """Writes one shard's rows of a table, as they were when the capture began.

    Args:
      path: the directory, which exists.
      capture: a `changes.Capture`.
      lock: a context manager that gives the table while it holds its lock, for a block at a time.
      identity: str, of this snapshot.
      since: the identity of the snapshot that this is a delta of; None for a full one.
      step: of the snapshot.
      shard, shards: which part of the table this is.

    Returns:
      a dict for each file: `file` (relative to `path`), `table`, `kind`, `snapshot`, `since`, `rows`, `bytes` and
      `crc32`.

    Raises:
      UserError: a file cannot be written, or a row is not finite; names the file, or the table and a key.
    """

    def blocks():
        with lock as table:
            block = capture.read(table)
        while block is not None:
            yield block
            with lock as table:
                block = capture.read(table)

    def schema_of(kind):
        return schema(capture.config, kind, capture.counts[1] if kind == "counts" else None)

    name, of_step = f"{capture.config.name}-{shard:05d}-of-{shards:05d}", "" if since is None else f".{step:010d}"
    delta = "" if since is None else f"{of_step}.delta"
    rows = ([key_array(keys), row_array(rows)] for keys, rows in _finite(blocks(), capture.config.name, step))
    parts = [("full" if since is None else "delta", f"{name}{delta}.arrow", rows)]
    if len(capture.removed):
        parts.append(("removed", f"{name}{of_step}.removed.arrow", [[key_array(capture.removed)]]))
    if capture.use is not None:
        parts.append(("use", f"{name}{of_step}.use.arrow", [[pa.array(column) for column in capture.use]]))
    if capture.counts is not None:
        parts.append(("counts", f"{name}{of_step}.counts.arrow", [[pa.array(line) for line in capture.counts[0]]]))
    common = dict(table=capture.config.name, snapshot=identity, since=since)
    return [
        dict(file=file, kind=kind, **common, **_write_file(path, file, schema_of(kind), batches))
        for kind, file, batches in parts
    ]


def _finite(blocks, table, step):
    """Yields the (keys, rows) blocks of a snapshot until a row is not finite; then counts those rows to the end.

    Raises:
      UserError: there are such rows; after the last block.
    """
    count, key = 0, None
    for keys, rows in blocks:
        first = first_not_finite(rows)
        if first >= 0:
            key = keys[first] if not count else key
            count += np.count_nonzero(~np.isfinite(rows).all(axis=1))
        elif not count:
            yield keys, rows
    if count:
        rows = "row is" if count == 1 else "rows are"
        raise diverged(f"table {table}, step {step}: {count} {rows} not finite, as that of key {key}")


def _write_file(path, name, of_file, batches):
    """-> dict of `rows`, `bytes` and `crc32`."""
    target = pathlib.Path(path) / name
    partial = target.with_name(f".{name}.partial")
    rows = 0
    try:
        with open(partial, "wb") as file:
            sink = _ChecksumFile(file)
            with pa.PythonFile(sink, mode="w") as arrow_file, pa.ipc.new_file(arrow_file, of_file) as writer:
                for columns_of_batch in batches:
                    rows += len(columns_of_batch[0])
                    writer.write_batch(pa.RecordBatch.from_arrays(columns_of_batch, schema=of_file))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
        fsync_path(path)
    except OSError as error:
        raise UserError(
            f"{target}: cannot be written: {error.strerror or error}; make room there (the snapshots before it are "
            "whole), then start the same command again to go on from the last checkpoint"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()  # Of a file that was not finished. It would take the room that the next attempt needs.
    return dict(rows=rows, bytes=sink.bytes, crc32=sink.crc32)


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
        """Left open: `write` has it synced to the disk first."""
