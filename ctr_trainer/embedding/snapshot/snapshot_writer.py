"""Writes the files of a snapshot, which `snapshot` describes."""

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np
import pyarrow as pa

from ctr_trainer.embedding.snapshot.snapshot import FileEntry, key_array, row_array, schema
from ctr_trainer.embedding.table.changes import Block, Capture
from ctr_trainer.embedding.table.row_kernels import refuse_not_finite
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.local_path import refusing_unwritable
from ctr_trainer.system.files.paths import Advanced, AnyPath, Path, path_of

_CURE = (
    "free some space there, then restart the same command to resume from the last checkpoint. The earlier snapshots "
    "stay valid"
)


class ArrowFile:
    """An Arrow file that tracks its number of rows, its size and its CRC-32."""

    def __init__(self, file: IO[bytes], target: Path, of_schema: pa.Schema, cure: str) -> None:
        self._file, self._target, self._schema, self._cure = file, target, of_schema, cure
        self._sink, self._rows = _ChecksumFile(file), 0
        with refusing_unwritable(target, cure):
            self._arrow_file = pa.PythonFile(self._sink, mode="w")
            self._writer = pa.ipc.new_file(self._arrow_file, self._schema)

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Writes a batch."""
        self._rows += len(columns[0])
        with refusing_unwritable(self._target, self._cure):
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def finish(self) -> dict[str, int]:
        """Completes the file and returns a dict of `rows`, `bytes` and `crc32`."""
        with refusing_unwritable(self._target, self._cure):
            self._writer.close()
            self._arrow_file.close()
            self._file.flush()
        return dict(rows=self._rows, bytes=self._sink.bytes, crc32=self._sink.crc32)


class _ChecksumFile:
    """A writable file that tracks its size and its CRC-32."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Does nothing: the code that opened the file closes it."""


@contextlib.contextmanager
def arrow_file(
    path: AnyPath, name: str, of_schema: pa.Schema, cure: str = "free some space there"
) -> Iterator[ArrowFile]:
    """Returns a context manager of an `ArrowFile`, which is under its final name in `path` when the block ends.

    `cure` ends the message of the UserError if the file cannot be written.
    """
    target = path_of(path) / name
    with refusing_unwritable(target, cure), target.writing() as file:
        yield ArrowFile(file, target, of_schema, cure)


def write(
    path: AnyPath,
    capture: Capture,
    table: Table,
    identity: str,
    since: str | None,
    step: int,
    shard: int = 0,
    shards: int = 1,
) -> list[FileEntry]:
    """Writes one shard's rows of a table in their state when the capture began; `path` is an existing directory.

    Holds the table's lock for one block at a time. `since` is the snapshot that this delta follows; None for a full
    one. Raises UserError, which names the file, or the table and a key, if a file cannot be written or a row is not
    finite.
    """
    config = capture.config
    common = dict(table=config.name, snapshot=identity, since=since)
    name, of_step = f"{config.name}-{shard:05d}-of-{shards:05d}", "" if since is None else f".{step:010d}"
    delta = "" if since is None else f"{of_step}.delta"
    kind = "full" if since is None else "delta"
    with contextlib.ExitStack() as stack:

        def begin(kind: str, file: str, counted: int | None = None) -> ArrowFile:
            files.append(stack.enter_context(arrow_file(path, file, schema(config, kind, counted), _CURE)))
            entries.append(dict(file=file, kind=kind, **common))
            return files[-1]

        files: list[ArrowFile] = []
        entries: list[FileEntry] = []
        rows_file = begin(kind, f"{name}{delta}.arrow")
        use_file = begin("use", f"{name}{of_step}.use.arrow") if config.evicts else None
        removed = np.unique(capture.removed)
        gone = np.ones(len(removed), np.bool_)
        for keys, rows, use in blocks_of(capture, table):
            refuse_not_finite(keys, rows, f"table {config.name}, step {step}: the row")
            rows_file.write([key_array(keys), row_array(config, rows)])
            if use_file and use is not None:
                use_file.write([key_array(keys), *map(pa.array, use)])
            if len(removed):
                at = np.minimum(np.searchsorted(removed, keys), len(removed) - 1)
                gone[at[removed[at] == keys]] = False
        if gone.any():
            begin("removed", f"{name}{of_step}.removed.arrow").write([key_array(removed[gone])])
        if capture.counts is not None:
            counters, counted = capture.counts
            begin("counts", f"{name}{of_step}.counts.arrow", counted).write([pa.array(line) for line in counters])
        return [{**entry, **file.finish()} for entry, file in zip(entries, files, strict=True)]


def write_blocks(
    path: AnyPath, config: TableConfig, blocks: Iterable[tuple[np.ndarray, ...]], identity: str, advanced: Advanced
) -> FileEntry:
    """Writes rows that are not in a store as a full snapshot of a table; `path` must exist.

    `blocks` are C-contiguous (keys int64[n], rows float32[n, width]), with each key once.
    """
    file = f"{config.name}-00000-of-00001.arrow"
    with arrow_file(path, file, schema(config)) as rows_file:
        for keys, rows in blocks:
            rows_file.write([key_array(keys), row_array(config, rows)])
            advanced(f"the first rows of {config.name}")
        written = rows_file.finish()
    return dict(file=file, kind="full", table=config.name, snapshot=identity, since=None, **written)


def blocks_of(capture: Capture, table: Table) -> Iterator[Block]:
    """Yields the blocks of a capture; holds the table's lock for one block at a time."""
    while True:
        with table.lock.alone():
            block = capture.read(table)
        if block is None:
            return
        yield block
