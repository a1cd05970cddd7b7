"""The RocksDB databases of rows on disk: their options and errors, and reading those that a checkpoint links."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tqdm

from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Advanced, Path
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import UserError, reason
from ctr_trainer.system.processes import hardware

_BLOCK_BYTES = 4096  # What a disk reads at once.
_BITS_PER_KEY = 16  # Of the Bloom filters: of 1,000 unknown keys, one costs a read in each of a few sorted runs.
_CACHED_BYTES = 8 << 20  # Of blocks that were read. A row that was read is in memory, so it is not read again soon.
_BUFFER_BYTES = 1 << 20  # Of removals that are collected before a file is written.
BLOCK_ROWS = 1 << 15  # Rows that are yielded at once.
_FILE_ROWS = 1 << 19  # Rows of a file that `rewrite` writes.
_WRITTEN_TOGETHER = 1 << 12  # Rows.
_RESTART = "restart to continue from the last checkpoint"
_SPACE = f"free some space there, or name another table_dir, then {_RESTART}"
_AGAIN = "free some space there, then give the same command again"
ROWS_FILE = ".sst"  # The end of the names of RocksDB's files that never change.
_END_BYTES = 1 << 14  # With the properties of a file, to which RocksDB gives a unique identifier.


def read_blocks(
    files: Mapping[str, Path], row_bytes: int, advanced: Advanced = lambda text: None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (keys int64[n], rows uint8[n, row_bytes]) of linked files, by their names in the database."""
    with _opened(files, advanced) as database:
        for keys, packed in blocks(database):
            yield keys, packed[:, :row_bytes]


def read_rows(files: Mapping[str, Path], keys: Sequence[int], row_bytes: int) -> dict[int, np.ndarray]:
    """Returns uint8[row_bytes], the row, of each of the keys that are in linked files."""
    with _opened(files) as database:
        values = {key: database.get(np.int64(key).tobytes()) for key in keys}
    return {key: np.frombuffer(value, np.uint8)[:row_bytes] for key, value in values.items() if value is not None}


def rewrite(files: Mapping[str, Path], without: np.ndarray, directory: LocalPath, prefix: str) -> list[LocalPath]:
    """Writes the database of linked files to a directory, without int64[n] keys and what is left of removed rows.

    Returns the new files, whose names begin with `prefix`; writes none if the linked files cannot have bytes of a row
    of these keys. Shows a progress bar.
    """
    module = rocksdict()
    with _opened(files) as source, told(directory, space=_AGAIN):
        removals = any(file["num_deletions"] for file in source.live_files())  # They may hide old bytes.
        if not removals and all(value is None for value in source.get([key.tobytes() for key in without])):
            return []
        with temporary_directory(str(directory)) as place:
            new = options(module)
            drafts = _write_files(source, without, place, new)
            with contextlib.closing(opened(os.path.join(place, "new"), new)) as database:
                if drafts:
                    move_files(database, drafts)
                linked = LocalPath(place, "linked")
                module.Checkpoint(database).create_checkpoint(str(linked))
            return [(linked / name).rename(directory / f"{prefix}{name}") for name in linked.files()]


def _write_files(source: Any, without: np.ndarray, place: str, new: Any) -> list[str]:
    """Writes the rows of a database, without int64[n] keys, to files in `place` with the options `new`."""
    drafts, rows = list[str](), source.property_int_value("rocksdb.estimate-num-keys")
    with tqdm.tqdm(total=rows, desc="rewriting", unit=" rows", disable=not sys.stderr.isatty()) as bar:
        for keys, packed in blocks(source, size=_FILE_ROWS):
            bar.update(len(keys))
            if (kept := np.flatnonzero(~np.isin(keys, without))).size:
                drafts.append(os.path.join(place, f"{len(drafts)}{ROWS_FILE}"))
                write_file(drafts[-1], new, ordered(keys[kept]), packed[kept])
    return drafts


def ordered(keys: np.ndarray) -> np.ndarray:
    """Returns uint64[n] in whose order a database has its keys, int64[n]: that of their bytes."""
    return keys.byteswap().view(np.uint64)


def write_file(file: str, new: Any, order: np.ndarray, packed: np.ndarray) -> None:
    """Writes rows, uint8[n, bytes], by their sorted `ordered` keys to a file for a database with the options `new`.

    Without the database's buffer of rows, this takes 0.7 instead of 2.7 us of a core per row.
    """
    writer, width = rocksdict().SstFileWriter(new), packed.shape[1]
    writer.open(file)
    for first in range(0, len(order), _WRITTEN_TOGETHER):
        names = order[first : first + _WRITTEN_TOGETHER].byteswap().tobytes()
        data = packed[first : first + _WRITTEN_TOGETHER].tobytes()
        for at in range(len(names) // 8):
            writer[names[8 * at : 8 * at + 8]] = data[width * at : width * at + width]
    writer.finish()


def move_files(database: Any, files: list[str]) -> None:
    """Moves files, whose keys are distinct, into a database; their rows replace those that it has."""
    moving = rocksdict().IngestExternalFileOptions()
    moving.set_move_files(True)
    database.ingest_external_file(files, moving)


@contextlib.contextmanager
def _opened(files: Mapping[str, Path], advanced: Advanced = lambda text: None) -> Iterator[Any]:
    """Yields the database of linked files, which it does not change."""
    module = rocksdict()
    with temporary_directory() as directory:
        for name, file in files.items():
            if isinstance(file, LocalPath):
                os.symlink(file.absolute(), os.path.join(directory, name))
            else:
                LocalPath(directory, name).copy_from(file, advanced)
        place = next(iter(files.values())).parent
        with told(place, directory):
            database = opened(directory, options(module), access_type=module.AccessType.read_only())
            with contextlib.closing(database):
                yield database


def opened(directory: str | os.PathLike[str], options: Any, **more: Any) -> Any:
    """Opens a database with these options. By default, rocksdict takes those of the files, which have no filters."""
    hardware.allow_open_files()  # It keeps all of its files open.
    return rocksdict().Rdict(str(directory), options, {"default": options}, **more)


def rocksdict() -> ModuleType:
    """Returns the package rocksdict; raises UserError if it is not installed."""
    try:
        import rocksdict as module
    except ImportError:
        raise UserError(
            "rows on disk (table_memory) need the package rocksdict: pip install 'ctr_trainer[disk]'"
        ) from None
    return module


def blocks(database: Any, first: bytes = b"", size: int = BLOCK_ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (keys int64[<= size], rows with their use uint8[n, bytes]) from the key `first` on."""
    at = database.iter()  # `items` would end at a damaged block as if it were the last one.
    at.seek(first)
    while at.valid():
        names, values = list[bytes](), list[bytes]()
        while at.valid() and len(names) < size:
            names.append(at.key())
            values.append(at.value())
            at.next()
        packed = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        yield np.frombuffer(b"".join(names), np.int64), packed
    at.status()


def bytes_and_end(file: LocalPath) -> tuple[int, int]:
    """Returns (number of bytes, CRC-32 of the last ones) of a file of rows; no other file has both."""
    with file.open_input() as source:
        size = source.size()
        source.seek(max(size - _END_BYTES, 0))
        return size, zlib.crc32(source.read())


def is_direct(directory: LocalPath) -> bool:
    """Returns whether files of a directory can be read past the page cache, which some file systems refuse."""
    file = directory / "direct"
    file.write_bytes(b"")
    with contextlib.suppress(OSError):
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
        return True
    return False


def options(module: ModuleType, is_direct: bool = False) -> Any:
    """Returns the options of a database."""
    table = module.BlockBasedOptions()
    table.set_bloom_filter(_BITS_PER_KEY, False)
    table.set_block_size(_BLOCK_BYTES)
    table.set_block_cache(module.Cache(_CACHED_BYTES))
    table.set_format_version(5)
    found = module.Options(raw_mode=True)
    found.create_if_missing(True)
    found.set_block_based_table_factory(table)
    found.set_compression_type(module.DBCompressionType.none())  # Weights do not compress.
    found.set_compaction_style(module.DBCompactionStyle.universal())
    found.set_write_buffer_size(_BUFFER_BYTES)
    found.set_max_write_buffer_number(4)  # `ColdRows` waits itself while more than one is full.
    found.set_max_background_jobs(2)
    found.set_level_zero_slowdown_writes_trigger(1 << 30)  # `ColdRows` waits itself.
    found.set_level_zero_stop_writes_trigger(1 << 30)
    found.set_use_direct_reads(is_direct)  # The page cache would take the memory that the rows may have.
    found.set_use_direct_io_for_flush_and_compaction(is_direct)
    found.set_keep_log_file_num(1)
    return found


@contextlib.contextmanager
def told(place: Any, opened_in: str = "", space: str = _SPACE) -> Iterator[None]:
    """Turns an error of RocksDB into a UserError with a remedy, which is `space` for a full disk.

    `opened_in` has links to the files of `place`.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, UserError | OSError):
            raise  # rocksdict has no class of its own.
        text = reason(error)
        text = text.replace(f"{opened_in}/", f"{place}/*.cold.") if opened_in else text
        cure = _RESTART
        if "No space" in text or "too large" in text:
            cure = space
        elif "Too many open files" in text:
            cure = f"raise the limit of open files (ulimit -n), then {cure}"
        elif "Corruption" in text:
            cure = f"the disk returned other bytes than were written: check it, then {cure}; if this happens again, "
            cure += f"remove the checkpoints that have this file, as *.cold.NUMBER{ROWS_FILE}"
        raise UserError(f"rows on disk in {place}: {text}; {cure}") from None
