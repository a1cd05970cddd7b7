"""The rows of a publication: the weights, without optimizer state, packed into a value of fixed size.

A value is little-endian and has no gaps. For a row of W weights in S segments:

| dtype | value | bytes | error of a weight w |
|---|---|---|---|
| `float32` | epoch uint32, weights float32[W] | 4 + 4 W | 0 |
| `float16` | epoch uint32, weights float16[W] | 4 + 2 W | \\|w\\| / 2^11, at least 2^-25 |
| `int8` | epoch uint32, scales float32[S], weights int8[W] | 4 + 4 S + W | half a scale |

A scale is the largest \\|w\\| of its segment, divided by 127; of int8 rows, the next power of two, which changes no
weight. A float16 weight is at most 65504. `float16` and `int8` weights are rounded to the nearest value, ties to even.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ctr_trainer.embedding.snapshot.snapshot import CONFIG, KEY, FileEntry, config_to_json, key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import ArrowFile, arrow_file, blocks_of
from ctr_trainer.embedding.table.changes import Capture
from ctr_trainer.embedding.table.row_form import INT8
from ctr_trainer.embedding.table.row_kernels import refuse_not_finite
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.training_configs import DTYPES
from ctr_trainer.system.files.paths import AnyPath, path_of
from ctr_trainer.system.messages.errors import UserError

ROWS, REMOVED = "rows", "removed"
_CURE = "free some space there; training continues, and retries"
_LARGEST = {"float16": float(np.finfo(np.float16).max), "int8": 127}


def file_name(table: str, kind: str, shard: int = 0, shards: int = 1) -> str:
    """Returns the name of a table's file of a `kind`, `rows` or `removed`."""
    return f"{table}-{shard:05d}-of-{shards:05d}.{kind}.arrow"


def schema(config: TableConfig, dtype: str, kind: str) -> pa.Schema:
    """Returns the pyarrow schema of a table's files of a kind."""
    row = pa.field("row", pa.binary(value_bytes(config, dtype)), nullable=False)
    fields = {ROWS: [KEY, row], REMOVED: [KEY]}[kind]
    return pa.schema(fields, {CONFIG: config_to_json(config)})


def value_array(values: np.ndarray) -> pa.Array:
    """Returns an Arrow array of C-contiguous uint8[n, value_bytes], without a copy."""
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values.reshape(-1))]
    )


def read_rows(path: AnyPath, config: TableConfig, dtype: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (keys int64[n], values uint8[n, value_bytes]) of a rows file, as views of its blocks.

    `records.check_files` must have checked the file.
    """
    for batch in _batches(path, schema(config, dtype, ROWS)):
        rows = batch.column("row")
        width = rows.type.byte_width
        values = np.frombuffer(rows.buffers()[1], np.uint8, len(rows) * width, rows.offset * width)
        yield batch.column("key").to_numpy(), values.reshape(-1, width)


def read_removed(path: AnyPath, config: TableConfig, dtype: str) -> Iterator[np.ndarray]:
    """Yields int64[n], the keys of a file of removed keys; the arguments are those of `read_rows`."""
    for batch in _batches(path, schema(config, dtype, REMOVED)):
        yield batch.column("key").to_numpy()


def _batches(path: AnyPath, expected: pa.Schema) -> Iterator[pa.RecordBatch]:
    file = path_of(path)
    try:
        with file.open_input() as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(expected):
                raise UserError(f"{file}: columns {reader.schema}, expected {expected}")
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not an Arrow IPC file of published rows: {error}") from None


def write(
    path: AnyPath,
    capture: Capture,
    table: Table,
    dtype: str,
    epoch: int,
    shard: int = 0,
    shards: int = 1,
) -> list[FileEntry]:
    """Writes one shard's rows and removed keys of a table for an epoch; writes no file without rows or keys.

    Holds the table's lock for one block at a time. The directory `path` must exist. Raises UserError, which names the
    file, or the table and a key, if a file cannot be written or a row is not finite.
    """
    config = capture.config
    entries = []

    @contextlib.contextmanager
    def writing(kind: str) -> Iterator[ArrowFile]:
        name = file_name(config.name, kind, shard, shards)
        with arrow_file(path, name, schema(config, dtype, kind), _CURE) as file:
            yield file
            entries.append(dict(file=name, table=config.name, kind=kind, **file.finish()))

    in_memory = (block[:2] for block in blocks_of(capture, table))
    blocks = itertools.chain(in_memory, table.read_cold(capture))
    first = next(blocks, None)
    if first is not None:
        with writing(ROWS) as file:
            for keys, rows in itertools.chain([first], blocks):
                refuse_not_finite(keys, rows, f"table {config.name}, epoch {epoch} of the publication: the row")
                file.write([key_array(keys), value_array(pack(rows, config, dtype, epoch))])
    if len(capture.removed):
        with writing(REMOVED) as file:
            file.write([key_array(capture.removed)])
    return entries


def exact_dtype(configs: Sequence[TableConfig]) -> str:
    """Returns the smallest dtype that changes no weight: int8 if all are stored so, or are alone in their segment."""
    segments = [(kind, weights) for config in configs for kind, weights, _ in config.form.segments]
    is_small = any(kind == INT8 for kind, _ in segments)
    return "int8" if is_small and all(kind == INT8 or weights == 1 for kind, weights in segments) else "float32"


def value_bytes(config: TableConfig, dtype: str) -> int:
    """Returns the bytes of a packed row; raises UserError if `dtype` is not one of `training_configs.DTYPES`."""
    return _layout(config, dtype).itemsize


def pack(rows: np.ndarray, config: TableConfig, dtype: str, epoch: int) -> np.ndarray:
    """Packs rows, float32[n, at least weights] and finite, as uint8[n, value_bytes]; the weights come first."""
    layout = _layout(config, dtype)
    values, weights = np.empty(len(rows), layout), rows[:, : config.weights]
    values["epoch"] = epoch
    if dtype == "float32":
        values["weights"] = weights
    elif dtype == "float16":
        values["weights"] = np.clip(weights, -_LARGEST[dtype], _LARGEST[dtype])
    else:
        for segment, (first, stop) in enumerate(_segments(config)):
            own = weights[:, first:stop]
            scales = np.abs(own).max(axis=1) / np.float32(_LARGEST[dtype])
            if config.form.segments[segment][0] == INT8:  # A power of two keeps the trained int8 weights as they are.
                fraction, power = np.frexp(scales)
                scales = np.ldexp(np.float32(1), power - (fraction == 0.5))
            values["scales"][:, segment] = scales
            # A scale of 0 has only zeros; rounding may bring a quotient slightly above the largest number.
            steps = np.divide(own, scales[:, None], out=np.zeros_like(own), where=scales[:, None] > 0)
            values["weights"][:, first:stop] = np.clip(np.rint(steps), -_LARGEST[dtype], _LARGEST[dtype])
    return values.view(np.uint8).reshape(len(rows), layout.itemsize)


def unpack(values: np.ndarray, config: TableConfig, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (weights float32[n, weights], epochs uint32[n]) of values that `pack` made."""
    layout = _layout(config, dtype)
    packed = np.ascontiguousarray(values).reshape(-1).view(layout)
    weights = packed["weights"].astype(np.float32)
    if dtype == "int8":
        for segment, (first, stop) in enumerate(_segments(config)):
            weights[:, first:stop] *= packed["scales"][:, segment, None]
    return weights, packed["epoch"].astype(np.uint32)


def _layout(config: TableConfig, dtype: str) -> np.dtype:
    """Returns the structured dtype of a value."""
    if dtype not in DTYPES:
        raise UserError(f"rows are published as one of {', '.join(DTYPES)}, not as {dtype!r}")
    scales = [("scales", "<f4", (len(config.dims),))] if dtype == "int8" else []
    return np.dtype([("epoch", "<u4"), *scales, ("weights", np.dtype(dtype).newbyteorder("<"), (config.weights,))])


def _segments(config: TableConfig) -> list[tuple[int, int]]:
    """Returns a list of (first column, column after the last) of each segment."""
    stops = np.cumsum(config.dims)
    return list(zip((stops - config.dims).tolist(), stops.tolist(), strict=True))
