"""Rows of tables in Parquet files that any program may have written, for example `tables/dim16-0001.parquet`.

A file has the columns `key`, int64, and `row`, a list of floats: the weights of the row, or the weights and the
optimizer state in the layout of `TableConfig`.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError

_SUFFIX = ".parquet"
_ROWS = 1 << 16  # Rows per batch in memory.
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def files_of(directory: str | os.PathLike, table: str) -> list[Path]:
    """Returns the files of a table in a directory: `TABLE.parquet`, `TABLE-*.parquet`, `TABLE/*.parquet`."""
    root, found = path_of(directory), []
    for name in root.files():
        top, is_file = name.split("/")[0].removesuffix(_SUFFIX), "/" not in name
        if name.endswith(_SUFFIX) and (top == table or (is_file and top.startswith(f"{table}-"))):
            found.append(root / name)
    return found


def has_files(directory: str | os.PathLike) -> bool:
    """Returns whether a directory or its subdirectories contain a Parquet file."""
    return any(name.endswith(_SUFFIX) for name in path_of(directory).files())


def blocks(files: Sequence[Path], config: TableConfig) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (keys int64[n], rows float32[n, m]) of a table's files; m is its `weights`, or `width` if they have state.

    Raises UserError, which names the file and the row, if a file cannot be read or has other columns or another width,
    a row is null or not finite, or a key is 0 or repeated.
    """
    seen = Index()
    for file in files:
        first = 0
        for batch in _batches(file):
            keys, rows = _keys(file, batch, first), _rows(file, batch, first, config)
            _refuse_repeated(file, keys, first, seen)
            yield keys, rows
            first += len(batch)


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    with _told(file), file.open_parquet() as parquet:
        there = parquet.schema_arrow
        missing = [name for name in ("key", "row") if name not in there.names]
        if missing:
            raise UserError(f"{file}: no column {missing[0]!r}; it has {', '.join(there.names)}: expected key and row")
        if there.field("key").type != pa.int64() or not any(is_list(there.field("row").type) for is_list in _LISTS):
            raise UserError(
                f"{file}: key is {there.field('key').type} and row is {there.field('row').type}: expected int64 and a "
                "list of floats"
            )
        yield from parquet.iter_batches(_ROWS, columns=["key", "row"], use_threads=False)


def _keys(file: Path, batch: pa.RecordBatch, first: int) -> np.ndarray:
    keys = batch.column("key")
    if keys.null_count:
        raise UserError(f"{file}, row {first + _first(keys.is_null()) + 1}: key is null")
    keys = np.require(keys.to_numpy(), requirements=("C", "A"))
    if not keys.all():
        raise UserError(f"{file}, row {first + int(np.argmin(keys != 0)) + 1}: key is 0, which means `no value`")
    return keys


def _rows(file: Path, batch: pa.RecordBatch, first: int, config: TableConfig) -> np.ndarray:
    column = batch.column("row")
    if column.null_count or column.flatten().null_count:
        raise UserError(f"{file}: a row among rows {first + 1} to {first + len(batch)} is null, or a value in it is")
    widths = pc.list_value_length(column)
    width = widths[0].as_py()
    if width not in (config.weights, config.width) or pc.min_max(widths).as_py() != {"min": width, "max": width}:
        other = next(w for w in pc.unique(widths).to_pylist() if w not in (config.weights, config.width) or w != width)
        raise UserError(
            f"{file}, row {first + _first(pc.equal(widths, other)) + 1}: {other} values; table {config.name} has rows "
            f"of {config.weights} weights (dims {list(config.dims)}), or of {config.width} with the state of "
            f"{config.optimizer.name}: export the rows with these widths, or train with the widths of the file"
        )
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if flat.dtype.kind != "f":
        raise UserError(f"{file}: row has values of type {flat.dtype}: expected floats")
    rows = np.ascontiguousarray(flat, np.float32).reshape(len(batch), width)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise UserError(f"{file}, row {first + int(np.argmin(finite)) + 1}: a value is not finite")
    return rows


def _refuse_repeated(file: Path, keys: np.ndarray, first: int, seen: Index) -> None:
    before = len(seen)
    known = seen.find(keys) >= 0
    if not known.any():
        seen.find_or_add(keys)
        if len(seen) - before == len(keys):
            return
        _, firsts = np.unique(keys, return_index=True)
        known = np.ones(len(keys), np.bool_)
        known[firsts] = False
    at = int(np.argmax(known))
    raise UserError(f"{file}, row {first + at + 1}: the key {keys[at]} has a row before this one: give each key once")


def _first(mask: pa.Array) -> int:
    return int(np.argmax(mask.to_numpy(zero_copy_only=False)))


@contextlib.contextmanager
def _told(file: Path) -> Iterator[None]:
    """Turns a read error into a UserError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file}: cannot be read as Parquet: {error}") from None
